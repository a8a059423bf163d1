"""Profiles for `simulate`: the shipped ones are read, and of wrong ones every field is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ROOT

from edge_vlm_ros.cli.simulate_profile import read_profile
from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.cost_store import store_costs
from edge_vlm_ros.planning.costs import ENCODER, CostModel
from edge_vlm_ros.planning.overlaps import as_cost
from edge_vlm_ros.simulation.profile import ProfileError

PROFILES = ROOT / "config" / "profiles"
RK3588 = PROFILES / "rk3588.yaml"
KEY: dict[str, Any] = {
    "model": "0123456789abcdef",
    "encoder": {"n_tokens": 49},
    "context_tokens": 4096,
    "engines": [
        {
            "name": "cpu",
            "device": "cpu",
            "max_parallel": 4,
            "chunk_tokens": 64,
            "batching": True,
            "cell_bytes": 100,
        }
    ],
}


def wrong(folder: Path, change: Callable[[dict[str, Any]], Any]) -> list[str]:
    """What is said of the RK3588's profile with a change, line by line."""
    document = yaml.safe_load(RK3588.read_text())
    change(document)
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(document))
    return refused(path)


def refused(path: Path) -> list[str]:
    with pytest.raises(ProfileError) as raised:
        read_profile(str(path))
    said = str(raised.value)
    assert str(path) in said and "pydantic" not in said
    return said.splitlines()[1:]


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_profiles_are_read_by_name_and_by_path(path: Path) -> None:
    assert read_profile(path.stem) == read_profile(str(path))


def put(value: Any, *keys: Any) -> Callable[[dict[str, Any]], None]:
    """A change: this value at that place."""

    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (put(0, "model", "frame_tokens", "value"), "model.frame_tokens.value: is 0; it must be"),
        (put(64.5, "model", "frame_tokens", "value"), "is 64.5; it must be a valid integer"),
        (put(3, "model"), "model: is 3; it must be a mapping of fields"),
        (put(None, "encoder", "device"), "encoder.device: is None; it must be a valid string"),
        (put(float("inf"), "encoder", "encode_s", "value"), "encode_s.value: is inf; it must be"),
        (put("no", "engines", "cpu", "batching"), "engines.cpu.batching: is 'no'; it must be"),
        (put("x", "engines", "gpu", "decode", "row_s", "value"), "gpu.decode.row_s.value: is 'x'"),
        (put({}, "engines", 7), "engines.7"),
        (put(3, "slowdowns"), "slowdowns: is 3; it must be a valid list"),
        (put(0, "slowdowns", 1, "factor", "value"), "slowdowns.1.factor.value: is 0; it must be"),
        (put(["nap"], "slowdowns", 0, "doing"), "slowdowns.0.doing.0: is 'nap'; it must be"),
        (put([], "slowdown"), "slowdown: is not a known field; remove it or correct its spelling"),
        (lambda document: document.pop("engines"), "engines: is missing; add it"),
    ],
)
def test_the_wrong_field_is_named_with_its_value_and_what_it_should_be(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], line: str
) -> None:
    assert any(line in said for said in wrong(tmp_path, change))


@pytest.mark.parametrize("step", ["prefill", "decode"])
def test_a_step_that_takes_no_time(tmp_path: Path, step: str) -> None:
    def change(document: dict[str, Any]) -> None:
        for name in ("fixed_s", "row_s"):
            document["engines"]["cpu"][step][name]["value"] = 0

    assert wrong(tmp_path, change) == [
        f"  engines.cpu.{step}: a step would take no time; fixed_s or row_s must be above 0"
    ]


def test_all_wrong_fields_are_named_at_once(tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["model"]["cell_bytes"]["value"] = -1
        del document["encoder"]["device"]

    said = "\n".join(wrong(tmp_path, change))
    assert "model.cell_bytes.value: is -1" in said and "encoder.device: is missing" in said


def test_an_activity_may_be_any_that_engines_have(tmp_path: Path) -> None:
    document = yaml.safe_load(RK3588.read_text())
    document["slowdowns"][0]["doing"] = [activity.value for activity in Activity]
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(document))
    slowed = {of[1] for of, _ in read_profile(str(path)).costs.slowdowns}
    assert slowed == {as_cost(activity) for activity in Activity} != set(Activity)


@pytest.mark.parametrize("content", [b"{", b"- 1", b"", b"\xff\xfe", b"a: [" * 9999])
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_what_is_no_profile_at_all(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"own{suffix}"
    path.write_bytes(content)
    refused(path)


def test_a_calibration_is_read_and_its_wrong_fields_are_named(tmp_path: Path) -> None:
    costs = read_profile("rk3588").costs
    cpu = CostModel({"cpu": costs.engines["cpu"]}, {ENCODER: 0.1})
    path = store_costs(tmp_path, KEY, cpu)
    assert read_profile(str(path)).costs.engines == cpu.engines
    document = json.loads(path.read_text())
    document["key"]["encoder"]["n_tokens"] = 0
    path.write_text(json.dumps(document))
    assert refused(path) == [
        "  key.encoder.n_tokens: is 0; it must be greater than or equal to 1; correct the value"
    ]
