"""Every reason against an import has a message of its own, before llama.cpp sees anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from snapshot_samples import LAYOUT, sample, sample_header, state_blob

from edge_vlm_ros.engines.errors import (
    BlobError,
    DamagedSnapshotError,
    OtherFlashAttentionError,
    OtherGeometryError,
    OtherHistoryError,
    OtherKvTypeError,
    OtherModelError,
    OtherRopeError,
    OtherRotationError,
    WrongRangeError,
)
from edge_vlm_ros.engines.snapshot import Snapshot
from edge_vlm_ros.engines.snapshot_check import check_layout, check_snapshot
from edge_vlm_ros.engines.state_blob import parse_state_blob


def test_what_fits_is_taken() -> None:
    check_snapshot(sample(), sample_header())
    check_snapshot(sample(5, 5), sample_header(5, 5))  # of a version without tokens


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"model_digest": b"z" * 32}, OtherModelError, "another model: qwen3 7a7a7a7a7a7a"),
        ({"architecture": "llama"}, OtherModelError, "another model: llama"),
        ({"kv_type": "f16"}, OtherKvTypeError, "type f16, this engine has q8_0"),
        ({"flash_attention": False}, OtherFlashAttentionError, "without flash attention"),
        ({"kv_rotation": False}, OtherRotationError, "without rotation.*LLAMA_ATTN_ROT_DISABLE"),
        ({"rope_type": 0}, OtherRopeError, "rope"),
        ({"rope_freq_base": 1e4}, OtherRopeError, "10000.0"),
        ({"rope_freq_scale": 1.0}, OtherRopeError, "rope"),
        ({"n_layer": 3}, OtherGeometryError, r"\(3, 64, 32\), this engine \(2, 64, 32\)"),
        ({"n_embd_k": 128}, OtherGeometryError, "128"),
        ({"n_embd_v": 64}, OtherGeometryError, "64, 64"),
    ],
)
def test_another_layout(change: dict[str, Any], error: type[Exception], text: str) -> None:
    other = replace(LAYOUT, **change)
    with pytest.raises(error, match=text):
        check_layout(other, LAYOUT)
    with pytest.raises(error, match=text):
        check_snapshot(Snapshot.seal(sample_header(layout=other), sample().blob), sample_header())
    check_layout(other, other)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"start_tokens": 6}, WrongRangeError, "cells 6 up to 12, wanted are 7 up to 12"),
        ({"stop_tokens": 13}, WrongRangeError, "cells 7 up to 13"),
        ({"start_identity": b"c" * 32}, OtherHistoryError, "begins behind the prefix 636363636363"),
        ({"stop_identity": b"c" * 32}, OtherHistoryError, "ends at the prefix 636363636363"),
    ],
)
def test_another_place(change: dict[str, Any], error: type[Exception], text: str) -> None:
    header = replace(sample_header(), **change)
    with pytest.raises(error, match=text):
        check_snapshot(Snapshot.seal(header, sample().blob), sample_header())


def test_damage_comes_first() -> None:
    """What a damaged header says is not worth telling."""
    header = sample_header(layout=replace(LAYOUT, kv_type="f16"))
    with pytest.raises(DamagedSnapshotError):
        check_snapshot(replace(sample(), header=header), sample_header())


RANGE = range(7, 12)


@pytest.mark.parametrize(
    ("blob", "error", "text"),
    [
        (state_blob(RANGE, magic=0xAF143CD7), BlobError, "no state blob"),
        (state_blob(RANGE, n_streams=2), BlobError, "of 2 caches"),
        (state_blob(RANGE, n_streams=0), BlobError, "of 0 caches"),
        (state_blob(RANGE, n_cells=4), OtherFlashAttentionError, "transposed"),
        (state_blob(RANGE, n_cells=2**32 - 1), BlobError, "cut off"),
        (state_blob(RANGE, n_cells=0), BlobError, "bytes too many"),
        (state_blob(RANGE, n_sequences=0), BlobError, "no sequence, or to several"),
        (state_blob(RANGE, n_sequences=2), BlobError, "no sequence, or to several"),
        (state_blob(RANGE, transposed=True), OtherFlashAttentionError, "transposed V"),
        (state_blob(RANGE, n_layer=1), BlobError, "too many"),
        (state_blob(RANGE, n_layer=3), BlobError, "cut off"),
        (state_blob(RANGE, n_layer=2**32 - 1), BlobError, "cut off"),
        (state_blob(RANGE, n_layer=0), BlobError, "too many"),
        (state_blob(RANGE, kinds=[1]), BlobError, "rows of type 1, its header says q8_0"),
        (state_blob(RANGE, kinds=[8, 8, 8, 1]), BlobError, r"mixes types of rows: \[1, 8\]"),
        (state_blob(RANGE, row_size=2**63), BlobError, "cut off"),
        (state_blob(RANGE, row_size=0), BlobError, "too many|cut off|mixes"),
        (state_blob(RANGE, tail=b"x"), BlobError, "1 bytes too many"),
        (state_blob(RANGE)[:-1], BlobError, "cut off"),
        (state_blob(RANGE)[:9], BlobError, "cut off"),
        (state_blob([]), BlobError, "has 0 cells"),
        (state_blob([7, 8, 9, 10]), BlobError, "4 cells between 7 and 10"),
        (state_blob([7, 8, 9, 10, 10]), BlobError, "5 cells between 7 and 10"),
        (
            state_blob([7, 8, 9, 10, 12]),
            BlobError,
            "between 7 and 12.*says 5 cells from 7 up to 12",
        ),
        (state_blob([-1, 7, 8, 9, 10]), BlobError, "between -1 and 10"),
        (state_blob(RANGE, replace(LAYOUT, n_layer=3)), BlobError, "3 layers"),
        (state_blob(RANGE, replace(LAYOUT, n_layer=1)), BlobError, "1 layers"),
        (state_blob(RANGE, replace(LAYOUT, n_embd_k=32)), BlobError, "K rows of .34. bytes"),
        (state_blob(RANGE, replace(LAYOUT, n_embd_v=64)), BlobError, "V rows of .68. bytes"),
    ],
)
def test_a_blob_that_lies(
    blob: np.typing.NDArray[np.uint8], error: type[Exception], text: str
) -> None:
    """Sealed with a right checksum: the parts of a snapshot must fit each other all the same."""
    with pytest.raises(error, match=text):
        check_snapshot(Snapshot.seal(sample_header(), blob), sample_header())


def test_rows_in_order_of_positions() -> None:
    blob = parse_state_blob(state_blob([9, 7, 8]))
    positions, keys, values = blob.by_position()
    assert positions.tolist() == [7, 8, 9]
    assert (len(keys), len(values)) == (2, 2)
    for ordered, rows in zip((*keys, *values), (*blob.keys, *blob.values), strict=True):
        np.testing.assert_array_equal(ordered, rows[[1, 2, 0]])
