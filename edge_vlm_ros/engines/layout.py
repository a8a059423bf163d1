"""What KV of a loaded model looks like in a context of ours."""

from __future__ import annotations

import os
import re

from .config import KvType
from .model import LlamaModel
from .snapshot import Layout

_QUANTISED = ("q8_0",)
_ROTATED_HEAD_DIM = 64
"""llama.cpp rotates quantised K and V rows of heads whose size is a multiple of this."""


def model_layout(model: LlamaModel, kv_type: KvType) -> Layout:
    """The layout of KV in a context that LlamaContext makes now."""
    return Layout(
        architecture=model.architecture,
        model_digest=model.digest,
        kv_type=kv_type,
        flash_attention=True,
        kv_rotation=any(_is_rotated(kv_type, head_dim) for head_dim in model.head_dims),
        n_layer=model.n_layer,
        n_embd_k=model.n_embd_k,
        n_embd_v=model.n_embd_v,
        rope_type=model.rope_type,
        rope_freq_base=model.rope_freq_base,
        rope_freq_scale=model.rope_freq_scale,
    )


def _is_rotated(kv_type: KvType, head_dim: int) -> bool:
    # llama.cpp reads the variable with atoi whenever it makes a context.
    number = re.match(r"\s*([+-]?\d+)", os.environ.get("LLAMA_ATTN_ROT_DISABLE", ""))
    disabled = number is not None and int(number[1]) != 0
    return kv_type in _QUANTISED and head_dim % _ROTATED_HEAD_DIM == 0 and not disabled
