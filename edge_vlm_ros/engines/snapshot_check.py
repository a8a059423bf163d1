"""Whether a snapshot may be imported: every reason against it has an error of its own.

Everything is checked before the native call, which would wipe its destination before it fails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import (
    BlobError,
    OtherFlashAttentionError,
    OtherGeometryError,
    OtherHistoryError,
    OtherKvTypeError,
    OtherModelError,
    OtherRopeError,
    OtherRotationError,
    WrongRangeError,
)
from .snapshot import Layout, Snapshot, SnapshotHeader
from .state_blob import check_rows, ggml_type, parse_state_blob, row_bytes


def check_snapshot(snapshot: Snapshot, wanted: SnapshotHeader) -> None:
    """Check that the snapshot is undamaged and is what is ``wanted``: KV in the layout of the
    importing engine, of this range of this history. Raises the SnapshotError that says why not."""
    snapshot.verify()
    check_layout(snapshot.header.layout, wanted.layout)
    _check_range(snapshot.header, wanted)
    _check_blob(snapshot)


def check_layout(found: Layout, own: Layout) -> None:
    """Check that KV of the layout ``found`` means the same in an engine whose layout is ``own``.

    Raises a SnapshotError.
    """
    if (found.model_digest, found.architecture) != (own.model_digest, own.architecture):
        raise OtherModelError(
            f"the snapshot is of another model: {_model(found)}, this engine has {_model(own)}"
        )
    if found.kv_type != own.kv_type:
        raise OtherKvTypeError(
            f"the snapshot has KV of type {found.kv_type}, this engine has {own.kv_type}: set the "
            "same kv_type on both engines"
        )
    if found.flash_attention != own.flash_attention:
        raise OtherFlashAttentionError(
            f"the snapshot was made {_with(found.flash_attention)} flash attention, this engine "
            f"works {_with(own.flash_attention)} it: V is laid out otherwise"
        )
    if found.kv_rotation != own.kv_rotation:
        raise OtherRotationError(
            f"the snapshot has KV {_with(found.kv_rotation)} rotation, this engine "
            f"{_with(own.kv_rotation)}: set LLAMA_ATTN_ROT_DISABLE alike on both sides"
        )
    if _rope(found) != _rope(own):
        raise OtherRopeError(
            "the snapshot was made with rope (type, base, scale) "
            f"{_rope(found)}, this engine works with {_rope(own)}"
        )
    if _geometry(found) != _geometry(own):
        raise OtherGeometryError(
            "the snapshot has (layers, K values, V values) "
            f"{_geometry(found)}, this engine {_geometry(own)}"
        )


def _check_range(found: SnapshotHeader, wanted: SnapshotHeader) -> None:
    for what, of, expected in (
        ("cells", (found.start_tokens, found.stop_tokens),
         (wanted.start_tokens, wanted.stop_tokens)),
        ("positions", (found.start_positions, found.stop_positions),
         (wanted.start_positions, wanted.stop_positions)),
    ):  # fmt: skip
        if of != expected:
            raise WrongRangeError(
                f"the snapshot holds {what} {of[0]} up to {of[1]}, wanted are {expected[0]} up to "
                f"{expected[1]}"
            )
    for place, identity, expected_identity in (
        ("begins behind", found.start_identity, wanted.start_identity),
        ("ends at", found.stop_identity, wanted.stop_identity),
    ):
        if identity != expected_identity:
            raise OtherHistoryError(
                f"the snapshot is of another history or epoch: it {place} the prefix "
                f"{identity.hex()[:12]}, wanted is {expected_identity.hex()[:12]}"
            )


def _check_blob(snapshot: Snapshot) -> None:
    """Check llama.cpp's blob against the header; the checksum says only that nothing changed."""
    header, layout = snapshot.header, snapshot.header.layout
    blob = parse_state_blob(snapshot.blob, has_grids=layout.has_grids)
    n = header.stop_tokens - header.start_tokens
    if not _has_cells(blob.positions, header):
        raise BlobError(
            f"the state blob has {len(blob.positions)} cells {_extent(blob.positions)}, its header "
            f"says {n} cells from {header.start_positions} up to {header.stop_positions}"
        )
    if not n:
        return
    if blob.ggml_type != ggml_type(layout.kv_type):
        raise BlobError(
            f"the state blob has rows of type {blob.ggml_type}, its header says {layout.kv_type}"
        )
    check_rows(blob.keys, layout.n_layer, row_bytes(layout.kv_type, layout.n_embd_k), "K")
    check_rows(blob.values, layout.n_layer, row_bytes(layout.kv_type, layout.n_embd_v), "V")


def _has_cells(positions: NDArray[np.int32], header: SnapshotHeader) -> bool:
    """Whether these are as many cells as the header says, in its range of positions: all of it,
    unless frames lie in grids there."""
    start, stop = header.start_positions, header.stop_positions
    if len(positions) != header.stop_tokens - header.start_tokens:
        return False
    if not header.layout.has_grids:
        return np.array_equal(np.sort(positions), np.arange(start, stop))
    return not len(positions) or (start == positions.min() and positions.max() < stop)


def _extent(positions: NDArray[np.int32]) -> str:
    return f"between {positions.min()} and {positions.max()}" if len(positions) else ""


def _model(layout: Layout) -> str:
    return f"{layout.architecture} {layout.model_digest.hex()[:12]}"


def _rope(layout: Layout) -> tuple[int, float, float]:
    return layout.rope_type, layout.rope_freq_base, layout.rope_freq_scale


def _geometry(layout: Layout) -> tuple[int, int, int]:
    return layout.n_layer, layout.n_embd_k, layout.n_embd_v


def _with(there: bool) -> str:
    return "with" if there else "without"
