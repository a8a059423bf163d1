"""`calibrate`: what it prints and draws of measured costs, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_vlm_ros.cli import calibrate
from edge_vlm_ros.cli.calibration_picture import save_picture
from edge_vlm_ros.cli.calibration_table import cost_tables
from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.errors import DeviceError
from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import CostModel, EngineCosts, MoveCost, RowCost, even_batches

ENGINES = (EngineConfig(), EngineConfig(name="second", device="rpc"))
COSTS = CostModel(
    {
        engine.name: EngineCosts(
            # 64 tokens in 64 ms, a token in 10 ms, or in 12 ms behind 1000.
            RowCost(0.0, 1e-3, 0.0),
            even_batches(9e-3, 1e-3, 2e-6),
            MoveCost(5e-4, 1e-9),
            MoveCost(7e-4, 2e-9),
            3e-4,
        )
        for engine in ENGINES
    },
    {"vision": 0.025},
    {
        (("cpu", Activity.DECODE), ("second", Activity.PREFILL)): 1.375,
        (("second", Activity.PREFILL), ("vision", Activity.ENCODE)): 2.5,
    },
)


def test_the_tables_have_speeds_and_slowdowns() -> None:
    lines = [line.split() for line in cost_tables(COSTS, ENGINES).splitlines()]
    cpu = next(line for line in lines if line and line[0] == "cpu")
    # Four answers behind 1000 tokens: 9 ms + 4 x 3 ms.
    assert cpu[1:7] == ["1000", "1000", "100", "83.33", "4", "190.5"]
    assert "0.50 ms + 1.000 ms/MB" in cost_tables(COSTS, ENGINES)
    assert ["vision:", "25.0", "ms", "a", "frame"] in lines
    assert ["cpu", "decode", "1.38", "-"] in lines
    assert ["second", "prefill", "-", "2.50"] in lines


@pytest.mark.parametrize("slowdowns", [True, False])
def test_the_picture_is_drawn(tmp_path: Path, slowdowns: bool) -> None:
    costs = COSTS if slowdowns else CostModel(COSTS.engines)
    path = tmp_path / "costs.png"
    save_picture(path, costs, ENGINES, 4096)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_unusable_parameters_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text("/**: {ros__parameters: {engines: []}}")
    assert calibrate.main([str(path), "--no-picture"]) == 2
    assert calibrate.main([str(tmp_path / "nowhere.yaml"), "--no-picture"]) == 2
    said = capsys.readouterr().err
    assert "at least one engine" in said and "nowhere.yaml" in said


def test_a_missing_matplotlib_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "find_spec", lambda name: None)
    monkeypatch.setattr(calibrate, "_measure", lambda config: pytest.fail("measured"))
    assert calibrate.main([]) == 2
    assert "needs matplotlib" in capsys.readouterr().err


def test_an_engine_that_cannot_be_started_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(config: object) -> CostModel:
        raise DeviceError("engine 'second': there is no device")

    monkeypatch.setattr(calibrate, "_measure", measure)
    assert calibrate.main(["--no-picture"]) == 1
    assert "there is no device" in capsys.readouterr().err
