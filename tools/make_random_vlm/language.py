"""Language models of the architectures that the projectors are made for, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf

from .vocabulary import N_TOKENS, add_vocabulary
from .weights import Weights

_Q8_0_FILE = 7  # enum llama_ftype
_MROPE = ("qwen2vl", "qwen3vl", "hunyuan_vl")
_WITH_QKV_BIAS = ("qwen2", "qwen2vl")
_WITH_QK_NORM = ("qwen3", "qwen3vl", "gemma3", "lfm2", "hunyuan_vl")


@dataclass(frozen=True)
class LanguageShape:
    """Sizes of a decoder. ``deepstack`` layers take image embeddings of their own."""

    arch: str
    n_embd: int = 64
    n_layer: int = 2
    n_head: int = 2
    n_kv: int = 1
    head_dim: int = 32
    n_ff: int = 128
    n_ctx: int = 4096
    deepstack: int = 0


def write_language(
    path: Path,
    shape: LanguageShape,
    specials: Sequence[str],
    words: Sequence[str],
    seed: int,
) -> None:
    """Write the GGUF file: Q8_0 matrices, an output matrix of its own."""
    writer = gguf.GGUFWriter(str(path), shape.arch)
    writer.add_name(f"random {shape.arch}")
    writer.add_file_type(_Q8_0_FILE)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_sizes(writer, shape)
    add_vocabulary(writer, specials, words)
    weights = Weights(writer, seed, quantise=True)
    weights.matrix("token_embd.weight", N_TOKENS, shape.n_embd)
    weights.matrix("output.weight", N_TOKENS, shape.n_embd)
    final_norm = "token_embd_norm" if shape.arch == "lfm2" else "output_norm"
    weights.norm(final_norm, shape.n_embd, bias=False)
    for index in range(shape.n_layer):
        _add_layer(weights, shape, index)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, shape: LanguageShape) -> None:
    arch = shape.arch
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    if arch == "deepseek2":
        _add_latent_sizes(writer, shape)
        return
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    if arch == "lfm2":  # the first layer is a convolution with a state
        writer.add_head_count_kv([0] + [shape.n_kv] * (shape.n_layer - 1))
        writer.add_shortconv_l_cache(3)
    else:
        writer.add_head_count_kv(shape.n_kv)
    if arch in _MROPE:
        eighth = shape.head_dim // 8
        writer.add_rope_dimension_sections([eighth, eighth, 2 * eighth, 0])
    if shape.deepstack:
        writer.add_num_deepstack_layers(shape.deepstack)
    if arch == "gemma3":
        writer.add_sliding_window(64)
    if arch == "granite":
        writer.add_embedding_scale(12.0)
        writer.add_residual_scale(0.22)
        writer.add_attention_scale(shape.head_dim**-1)
        writer.add_logit_scale(8.0)


_LATENT, _ROPE = 32, 32


def _add_latent_sizes(writer: gguf.GGUFWriter, shape: LanguageShape) -> None:
    """Multi-head latent attention: one latent row per position is all that is cached."""
    writer.add_head_count_kv(1)
    writer.add_key_length(_LATENT + _ROPE)
    writer.add_value_length(_LATENT)
    writer.add_key_length_mla(shape.head_dim + _ROPE)
    writer.add_value_length_mla(shape.head_dim)
    writer.add_kv_lora_rank(_LATENT)
    writer.add_rope_dimension_count(_ROPE)
    writer.add_leading_dense_block_count(shape.n_layer)
    writer.add_expert_feed_forward_length(shape.n_ff)
    writer.add_expert_shared_count(1)
    writer.add_expert_count(2)
    writer.add_expert_used_count(1)


def _add_layer(weights: Weights, shape: LanguageShape, index: int) -> None:
    prefix, d, arch = f"blk.{index}", shape.n_embd, shape.arch
    weights.norm(f"{prefix}.attn_norm", d, bias=False)
    weights.norm(f"{prefix}.ffn_norm", d, bias=False)
    if arch == "deepseek2":
        _add_latent_attention(weights, shape, prefix)
    elif arch == "lfm2" and index == 0:
        weights.normal(f"{prefix}.shortconv.conv.weight", d, 3)
        weights.matrix(f"{prefix}.shortconv.in_proj.weight", 3 * d, d)
        weights.matrix(f"{prefix}.shortconv.out_proj.weight", d, d)
    else:
        _add_attention(weights, shape, prefix)
    if arch == "gemma3":
        weights.norm(f"{prefix}.post_attention_norm", d, bias=False)
        weights.norm(f"{prefix}.post_ffw_norm", d, bias=False)
    weights.matrix(f"{prefix}.ffn_gate.weight", shape.n_ff, d)
    weights.matrix(f"{prefix}.ffn_up.weight", shape.n_ff, d)
    weights.matrix(f"{prefix}.ffn_down.weight", d, shape.n_ff)


def _add_attention(weights: Weights, shape: LanguageShape, prefix: str) -> None:
    bias = shape.arch in _WITH_QKV_BIAS
    q, kv = shape.n_head * shape.head_dim, shape.n_kv * shape.head_dim
    weights.linear(f"{prefix}.attn_q", q, shape.n_embd, bias=bias)
    weights.linear(f"{prefix}.attn_k", kv, shape.n_embd, bias=bias)
    weights.linear(f"{prefix}.attn_v", kv, shape.n_embd, bias=bias)
    weights.matrix(f"{prefix}.attn_output.weight", shape.n_embd, q)
    if shape.arch in _WITH_QK_NORM:
        weights.norm(f"{prefix}.attn_q_norm", shape.head_dim, bias=False)
        weights.norm(f"{prefix}.attn_k_norm", shape.head_dim, bias=False)


def _add_latent_attention(weights: Weights, shape: LanguageShape, prefix: str) -> None:
    d, heads, head = shape.n_embd, shape.n_head, shape.head_dim
    weights.matrix(f"{prefix}.attn_q.weight", heads * (head + _ROPE), d)
    weights.matrix(f"{prefix}.attn_kv_a_mqa.weight", _LATENT + _ROPE, d)
    weights.norm(f"{prefix}.attn_kv_a_norm", _LATENT, bias=False)
    weights.matrix(f"{prefix}.attn_k_b.weight", heads, _LATENT, head)
    weights.matrix(f"{prefix}.attn_v_b.weight", heads, head, _LATENT)
    weights.matrix(f"{prefix}.attn_output.weight", d, heads * head)
