"""Profiles: where every number comes from, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulation_helpers import machine, one_question

from edge_vlm_ros.planning.cost_store import store_costs
from edge_vlm_ros.simulation.measured import load_measured, newest_measured
from edge_vlm_ros.simulation.profile import ProfileError, load_profile
from edge_vlm_ros.simulation.simulator import simulate

FOLDER = Path(__file__).resolve().parents[2] / "config" / "profiles"
SHIPPED = sorted(FOLDER.glob("*.yaml"))


def _unmarked(node: Any, place: str = "") -> Iterator[str]:
    """Places of all numbers that are not the value of something with a source or assumption."""
    if isinstance(node, dict):
        marks = [str(node.get(mark, "")).strip() for mark in ("source", "assumption")]
        for key, value in node.items():
            marked = key == "value" and sum(map(bool, marks)) == 1
            if not marked:
                yield from _unmarked(value, f"{place}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _unmarked(value, f"{place}[{index}]")
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield place


def test_the_boards_are_there() -> None:
    assert {path.stem for path in SHIPPED} >= {"rk3588", "qcs6490", "m4max"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_number_has_a_source_or_is_an_assumption(path: Path) -> None:
    assert list(_unmarked(yaml.safe_load(path.read_text()))) == []
    profile = load_profile(path)
    assert profile.sources and profile.assumptions
    published = [text for text in profile.sources.values() if "." in text]
    assert published, "no address anywhere"
    for engine in profile.engines:
        costs = profile.costs.engines[engine.name]
        # More answers in a step never make it shorter, nor one answer's share of it longer.
        steps = [costs.decode.seconds(rows, 500) for rows in (1, 2, 4)]
        assert steps == sorted(steps)
        assert steps[2] / 4 <= steps[1] / 2 <= steps[0]


def _broken(change: str) -> str:
    text = (FOLDER / "rk3588.yaml").read_text()
    document = yaml.safe_load(text)
    if change == "unmarked":
        del document["engines"]["cpu"]["decode"]["row_s"]["assumption"]
    elif change == "bare":
        document["engines"]["cpu"]["decode"]["row_s"] = 0.01
    elif change == "negative":
        document["encoder"]["encode_s"]["value"] = -1
    elif change == "missing":
        del document["model"]["cell_bytes"]
    elif change == "slowdown":
        document["slowdowns"][0]["beside"] = "dsp"
    elif change == "device":
        document["engines"]["gpu"]["device"] = "rpc:nowhere"
    return yaml.safe_dump(document)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("unmarked", r"engines\.cpu\.decode\.row_s: .*source or an assumption"),
        ("bare", r"engines\.cpu\.decode\.row_s: must be a mapping"),
        ("negative", r"encoder\.encode_s: .*0 or more"),
        ("missing", r"model: has no cell_bytes"),
        ("slowdown", r"slowdowns\[0\]: .*dsp"),
        ("device", r"engines\.gpu: .*RPC server"),
    ],
)
def test_a_profile_that_cannot_be_used(tmp_path: Path, change: str, place: str) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(_broken(change))
    with pytest.raises(ProfileError, match=place):
        load_profile(path)


def _key(**changes: Any) -> dict[str, Any]:
    engine = {
        "name": "cpu",
        "device": "cpu",
        "max_parallel": 2,
        "chunk_tokens": 64,
        "batching": True,
        "cell_bytes": 1024,
    }
    key = {
        "model": "00" * 32,
        "context_tokens": 4096,
        "encoder": {"n_tokens": 4},
        "engines": [engine],
    }
    return {**key, **changes}


def test_a_calibration_is_a_profile(tmp_path: Path) -> None:
    costs = machine("cpu").costs
    path = store_costs(tmp_path, _key(), costs)
    assert newest_measured(tmp_path) == path
    profile = load_measured(path)
    assert profile.costs == costs
    assert profile.model.cell_bytes == 1024
    assert len(simulate(profile, one_question(), "single:cpu").answers) == 1


@pytest.mark.parametrize("key", [_key(engines=[]), _key(encoder={}), {}])
def test_a_calibration_that_says_too_little(tmp_path: Path, key: dict[str, Any]) -> None:
    path = store_costs(tmp_path, key, machine("cpu").costs)
    with pytest.raises(ProfileError, match=path.name):
        load_measured(path)
    path.write_text(json.dumps([]))
    with pytest.raises(ProfileError, match=path.name):
        load_measured(path)


def test_nothing_measured_yet(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="calibrate"):
        newest_measured(tmp_path)
