"""GGUF files of one layer and random weights, one for each kind of model that matters here."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

EMBD, HEADS, FF, VOCAB = 64, 2, 64, 8


class TinyModel:
    """Writes a model of random weights and one layer."""

    def __init__(self, path: Path, arch: str) -> None:
        self.path, self.arch = path, arch
        self.writer = gguf.GGUFWriter(path, arch)
        self.rng = np.random.default_rng(0)
        w = self.writer
        w.add_context_length(128)
        w.add_embedding_length(EMBD)
        w.add_block_count(1)
        w.add_vocab_size(VOCAB)
        w.add_tokenizer_model("none")

    def attention(self, head_dim: int = EMBD // HEADS) -> TinyModel:
        w = self.writer
        w.add_feed_forward_length(FF)
        w.add_head_count(HEADS)
        w.add_head_count_kv(HEADS)
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        w.add_layer_norm_rms_eps(1e-6)
        w.add_rope_dimension_count(head_dim)
        n = HEADS * head_dim
        for name in ("attn_q", "attn_k", "attn_v"):
            self.tensor(f"blk.0.{name}.weight", n, EMBD)
        self.tensor("blk.0.attn_output.weight", EMBD, n)
        for name in ("ffn_gate", "ffn_up"):
            self.tensor(f"blk.0.{name}.weight", FF, EMBD)
        self.tensor("blk.0.ffn_down.weight", EMBD, FF)
        self.tensor("blk.0.ffn_norm.weight", EMBD)
        return self

    def tensor(self, name: str, *shape: int) -> None:
        self.writer.add_tensor(name, self.rng.standard_normal(shape).astype(np.float32))

    def write(self) -> Path:
        self.tensor("token_embd.weight", VOCAB, EMBD)
        self.tensor("output_norm.weight", EMBD)
        self.tensor("blk.0.attn_norm.weight", EMBD)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.path


def tiny_llama(path: Path, head_dim: int = EMBD // HEADS) -> Path:
    return TinyModel(path, "llama").attention(head_dim).write()


def tiny_mamba(path: Path) -> Path:
    model, inner, state, dt_rank, conv = TinyModel(path, "mamba"), 2 * EMBD, 4, 4, 4
    w = model.writer
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_ssm_conv_kernel(conv)
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(state)
    w.add_ssm_time_step_rank(dt_rank)
    model.tensor("blk.0.ssm_in.weight", 2 * inner, EMBD)
    model.tensor("blk.0.ssm_conv1d.weight", inner, conv)
    model.tensor("blk.0.ssm_conv1d.bias", inner)
    model.tensor("blk.0.ssm_x.weight", dt_rank + 2 * state, inner)
    model.tensor("blk.0.ssm_dt.weight", inner, dt_rank)
    model.tensor("blk.0.ssm_dt.bias", inner)
    model.tensor("blk.0.ssm_a", inner, state)
    model.tensor("blk.0.ssm_d", inner)
    model.tensor("blk.0.ssm_out.weight", EMBD, inner)
    return model.write()


def tiny_gemma3(path: Path) -> Path:
    model = TinyModel(path, "gemma3").attention()
    model.writer.add_sliding_window(16)
    for name in ("attn_q_norm", "attn_k_norm"):
        model.tensor(f"blk.0.{name}.weight", EMBD // HEADS)
    for name in ("post_attention_norm", "post_ffw_norm"):
        model.tensor(f"blk.0.{name}.weight", EMBD)
    return model.write()


def tiny_qwen2vl(path: Path) -> Path:
    model = TinyModel(path, "qwen2vl").attention()
    model.writer.add_rope_dimension_sections([4, 6, 6, 0])
    for name in ("attn_q", "attn_k", "attn_v"):
        model.tensor(f"blk.0.{name}.bias", EMBD)
    return model.write()
