"""Snapshots made without an engine: blobs in llama.cpp's form, filled with random rows."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.engines.snapshot import Layout, Snapshot, SnapshotHeader
from edge_vlm_ros.engines.state_blob import ggml_type, row_bytes

LAYOUT = Layout(
    architecture="qwen3",
    model_digest=bytes(range(32)),
    kv_type="q8_0",
    flash_attention=True,
    kv_rotation=True,
    n_layer=2,
    n_embd_k=64,
    n_embd_v=32,
    rope_type=2,
    rope_freq_base=1e6,
    rope_freq_scale=0.5,
)


def state_blob(
    positions: Sequence[int],
    layout: Layout = LAYOUT,
    *,
    magic: int = 0xAF143CD8,
    n_streams: int = 1,
    n_cells: int | None = None,
    n_sequences: int = 1,
    transposed: bool = False,
    n_layer: int | None = None,
    kinds: Sequence[int] = (),
    row_size: int | None = None,
    tail: bytes = b"",
) -> NDArray[np.uint8]:
    """A blob of cells at ``positions``. What is given by name lies about the rest."""
    rng = np.random.default_rng(len(positions))
    n = len(positions)
    parts = [struct.pack("<IiII", magic, 0, n_streams, n if n_cells is None else n_cells)]
    parts += [struct.pack("<iIi", position, n_sequences, 0) for position in positions]
    if n:
        n_layer = layout.n_layer if n_layer is None else n_layer
        parts.append(struct.pack("<II", transposed, n_layer))
        types = list(kinds) or [ggml_type(layout.kv_type)]
        for width in (layout.n_embd_k, layout.n_embd_v):
            size = row_bytes(layout.kv_type, width)
            for _ in range(layout.n_layer):
                kind = types.pop(0) if len(types) > 1 else types[0]
                parts.append(struct.pack("<iQ", kind, size if row_size is None else row_size))
                parts.append(rng.bytes(n * size))
    return np.frombuffer(b"".join(parts) + tail, np.uint8).copy()


def sample_header(start: int = 7, stop: int = 12, layout: Layout = LAYOUT) -> SnapshotHeader:
    return SnapshotHeader(layout, start, stop, start, stop, b"a" * 32, b"b" * 32)


def sample(start: int = 7, stop: int = 12, layout: Layout = LAYOUT) -> Snapshot:
    """Cells in another order than their positions."""
    positions = list(range(start, stop))[::-1]
    return Snapshot.seal(sample_header(start, stop, layout), state_blob(positions, layout))
