"""Writes the trained language model as GGUF."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tools.demo_model.gguf_file import Shape, add_tokenizer, finish, open_gguf
from tools.demo_model.language_model import LanguageConfig

_OF_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}


def _tensor_names(n_layer: int) -> Iterator[tuple[str, str]]:
    """(name in the weights, name in the file)"""
    yield "model.embed_tokens.weight", "token_embd.weight"
    yield "model.norm.weight", "output_norm.weight"
    for i in range(n_layer):
        for ours, theirs in _OF_LAYER.items():
            yield f"model.layers.{i}.{ours}.weight", f"blk.{i}.{theirs}.weight"


def export_gguf(
    path: Path,
    config: LanguageConfig,
    weights: Mapping[str, npt.NDArray[np.float32]],
    tokenizer: dict[str, Any],
    file_type: str,
) -> None:
    """Write the file; file_type: F16, Q8_0 or Q4_0. tokenizer: the content of tokenizer.json."""
    shape = Shape(
        "qwen3",
        config.n_layer,
        config.n_embd,
        config.n_head,
        config.n_kv,
        config.head_dim,
        config.n_ff,
        config.vocab_size,
        config.n_ctx,
        config.rope_theta,
        config.eps,
    )
    writer = open_gguf(path, shape, file_type, "tinyvlm-tabletop", "apache-2.0")
    add_tokenizer(writer, tokenizer, config.vocab_size)
    for ours, theirs in _tensor_names(config.n_layer):
        values = np.ascontiguousarray(weights[ours], np.float32)
        if values.ndim == 1:
            writer.add_tensor(theirs, values)
        elif file_type == "F16":
            writer.add_tensor(theirs, values.astype(np.float16))
        else:
            # Like llama.cpp's own quantiser: the matrix of the vocabulary stays finer than Q4_0.
            type_ = gguf.GGMLQuantizationType[
                "Q8_0" if theirs == "token_embd.weight" else file_type
            ]
            writer.add_tensor(theirs, gguf.quants.quantize(values, type_), raw_dtype=type_)
    finish(writer)
