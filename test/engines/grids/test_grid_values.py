"""Profiles, positions and snapshots of frames in grids say what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_helpers import Items, MakeDriver, n_positions, n_tokens
from pydantic import ValidationError
from transfer_helpers import boundaries, export

from edge_vlm_ros.engines.errors import BlobError, WrongRangeError
from edge_vlm_ros.engines.protocol import Boundary, TrunkId
from edge_vlm_ros.engines.snapshot import Snapshot, SnapshotHeader
from edge_vlm_ros.engines.snapshot_check import check_snapshot
from edge_vlm_ros.engines.state_blob import cell_positions, parse_state_blob, unread_cells
from edge_vlm_ros.history import Grid, embedding_positions
from edge_vlm_ros.history.grid import in_line
from edge_vlm_ros.model_profile import EncoderProfile, ModelProfile

TABLE = TrunkId("table", 0)


def test_positions_of_the_rows_of_a_frame() -> None:
    assert Grid(2, 3).positions(10).tolist() == [
        [10] * 6,
        [10, 10, 10, 11, 11, 11],
        [10, 11, 12, 10, 11, 12],
        [0] * 6,
    ]
    assert Grid(2, 1, 2, 1).positions(10).tolist() == [
        [10, 11, 12, 12, 14],
        [10, 11, 12, 13, 14],
        [10, 11, 12, 12, 14],
        [0] * 5,
    ]
    assert in_line(5, 3, 1).tolist() == [[5, 6, 7]]
    assert in_line(5, 3).tolist() == [[5, 6, 7]] * 3 + [[0] * 3]


def test_a_frame_takes_as_many_positions_as_its_longer_side() -> None:
    grids = (Grid(8, 10), Grid(10, 8), Grid(1, 80), Grid(3, 4, 2, 1), None)
    assert [embedding_positions(80, grid) for grid in grids] == [10, 10, 80, 7, 80]


def test_a_boundary_has_as_many_positions_as_tokens_unless_it_says_so() -> None:
    assert Boundary(1, 7, b"") == Boundary(1, 7, b"", 7) != Boundary(1, 7, b"", 5)


def test_the_grid_of_a_profile_has_all_tokens(profile: ModelProfile) -> None:
    fields = profile.encoder.model_dump()
    assert EncoderProfile.model_validate({**fields, "grid": [7, 7]}).grid == Grid(7, 7)
    assert profile.encoder.grid is None
    with pytest.raises(ValidationError, match="has 56 tokens, n_tokens says 49"):
        EncoderProfile.model_validate({**fields, "grid": (7, 8)})


def wanted(snapshot: Snapshot, **changes: int) -> SnapshotHeader:
    return replace(snapshot.header, **changes)


def test_snapshots_say_their_positions(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=4)
    (snapshot,) = export(driver, TABLE, boundaries(story, 2, 4))
    header = snapshot.header
    assert (header.start_tokens, header.stop_tokens) == (n_tokens(story, 2), n_tokens(story, 4))
    positions = (n_positions(story, 2), n_positions(story, 4))
    assert (header.start_positions, header.stop_positions) == positions
    assert positions[1] - positions[0] < header.stop_tokens - header.start_tokens
    check_snapshot(Snapshot.from_bytes(snapshot.to_bytes()), header)
    with pytest.raises(WrongRangeError, match="holds positions"):
        check_snapshot(snapshot, wanted(snapshot, stop_positions=positions[1] + 1))
    for lie in (
        {"start_positions": positions[0] - 1},
        {"stop_positions": positions[1] - 1},
        {"stop_tokens": header.stop_tokens - 1},
    ):
        lying = Snapshot.seal(wanted(snapshot, **lie), snapshot.blob)
        with pytest.raises(BlobError, match="its header says"):
            check_snapshot(lying, lying.header)


def test_cells_that_nobody_reads() -> None:
    blob = unread_cells(np.arange(3, 8, dtype=np.int32), "q8_0", 2, 64, 32)
    parsed = parse_state_blob(blob, has_grids=True)
    assert (
        parsed.positions.tolist()
        == [3, 4, 5, 6, 7]
        == cell_positions(blob, has_grids=True).tolist()
    )
    assert [rows.shape for rows in (*parsed.keys, *parsed.values)] == [(5, 68)] * 2 + [(5, 34)] * 2
