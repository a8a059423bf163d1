"""Costs on disk: found again, and never taken for something that they are not."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning import cost_store
from edge_vlm_ros.planning.cost_store import cost_file, default_folder, load_costs, store_costs
from edge_vlm_ros.planning.costs import BatchCost, CostModel, EngineCosts, MoveCost, RowCost

KEY = {"model": "abc", "engines": [{"name": "cpu", "cpus": [0, 1]}]}
COSTS = CostModel(
    {
        "cpu": EngineCosts(
            RowCost(1e-3, 2e-4, 3e-7), BatchCost(((1, 4e-3), (2, 9e-3), (4, 8e-3)), 6e-7),
            MoveCost(7e-4, 8e-10),
            MoveCost(9e-4, 1e-9), 2e-4,
        )
    },
    {"vision": 0.02},
    {(("cpu", Activity.DECODE), ("vision", Activity.ENCODE)): 1.25},
)  # fmt: skip


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    path = store_costs(folder, KEY, COSTS)
    assert load_costs(folder, KEY) == COSTS
    assert path == cost_file(folder, dict(reversed(KEY.items()))), "the order of keys is no matter"
    assert os.listdir(folder) == [path.name]
    # For people too.
    document = json.loads(path.read_text())
    assert (
        document["key"] == KEY
        and document["costs"]["engines"]["cpu"]["decode"]["calls"][1]["answers"] == 2
    )


def test_anything_else_has_other_costs(tmp_path: Path) -> None:
    store_costs(tmp_path, KEY, COSTS)
    other: dict[str, Any] = {**KEY, "model": "abd"}
    assert load_costs(tmp_path, other) is None
    # The name of a file is a digest, its content decides.
    cost_file(tmp_path, KEY).rename(cost_file(tmp_path, other))
    assert load_costs(tmp_path, other) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(format=cost_store.FORMAT + 1),
        lambda d: d.pop("costs"),
        lambda d: d["costs"]["encode_s"].update(vision=-1),
        lambda d: d["costs"]["encode_s"].update(vision=float("nan")),
        lambda d: d["costs"]["encode_s"].update(vision="fast"),
        lambda d: d["costs"]["engines"]["cpu"].update(prefill=[1, 2, 3]),
        lambda d: d["costs"]["slowdowns"][0].update(factor=0),
        lambda d: d["costs"]["slowdowns"][0]["of"].update(activity="sleep"),
        lambda d: d["costs"].update(slowdowns=7),
    ],
)
def test_a_spoilt_file_is_not_used_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Any
) -> None:
    path = store_costs(tmp_path, KEY, COSTS)
    document = json.loads(path.read_text())
    spoil(document)
    path.write_text(json.dumps(document))
    assert load_costs(tmp_path, KEY) is None
    assert str(path) in caplog.text and "cannot be used" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
def test_what_is_no_such_file_is_not_used(tmp_path: Path, content: bytes) -> None:
    cost_file(tmp_path, KEY).write_bytes(content)
    assert load_costs(tmp_path, KEY) is None


def test_a_missing_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert load_costs(tmp_path, KEY) is None
    assert "no stored costs" in caplog.text


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store_costs(tmp_path, KEY, COSTS)

    def half(document: Any, file: Any, **options: Any) -> None:
        file.write('{"format": 1, "co')
        raise OSError("disk full")

    monkeypatch.setattr(cost_store.json, "dump", half)
    with pytest.raises(OSError, match="disk full"):
        store_costs(tmp_path, KEY, CostModel({}))
    assert load_costs(tmp_path, KEY) == COSTS
    assert os.listdir(tmp_path) == [path.name]


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "edge_vlm_ros" / "calibration"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == Path.home() / ".cache" / "edge_vlm_ros" / "calibration"
