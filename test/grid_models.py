"""The demo model's weights and vocabulary as models whose frames lie in a grid (M-RoPE)."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_SECTIONS = [12, 10, 10, 0]
"""Pairs of a head of 64 values that turn with time, row and column."""


def grid_model(source: Path, path: Path, arch: str, *, n_deepstack: int = 0) -> Path:
    """Write the Qwen3 model ``source`` as a ``qwen2vl`` or ``qwen3vl``.

    A Qwen2-VL has biases and no norms of Q and K: those weights are drawn.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, arch)
    for field in reader.fields.values():
        name = field.name.replace("qwen3.", f"{arch}.")
        if name.startswith(("GGUF.", "general.architecture")):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub)
    writer.add_rope_dimension_sections(_SECTIONS)
    if arch == "qwen3vl":
        writer.add_num_deepstack_layers(n_deepstack)
    rng = np.random.default_rng(0)
    for tensor in reader.tensors:
        if arch == "qwen2vl" and "_norm." in tensor.name and "attn_q_" in tensor.name:
            _bias(writer, rng, tensor.name.replace("attn_q_norm.weight", "attn_q.bias"), 256)
            continue
        if arch == "qwen2vl" and "_norm." in tensor.name and "attn_k_" in tensor.name:
            _bias(writer, rng, tensor.name.replace("attn_k_norm.weight", "attn_k.bias"), 128)
            _bias(writer, rng, tensor.name.replace("attn_k_norm.weight", "attn_v.bias"), 128)
            continue
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _bias(writer: gguf.GGUFWriter, rng: np.random.Generator, name: str, n: int) -> None:
    writer.add_tensor(name, (rng.standard_normal(n) * 0.1).astype(np.float32))
