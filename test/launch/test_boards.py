"""Boards: how they are recognised, and their parameter files."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_vlm_ros.boards import BOARDS, detect_board
from edge_vlm_ros.ros.parameter_file import read_config

CONFIG = Path(__file__).resolve().parents[2] / "config"


@pytest.mark.parametrize(
    ("compatible", "board"),
    [
        (("xunlong,orangepi-5-plus", "rockchip,rk3588"), "rk3588"),
        (("radxa,rock-5c", "rockchip,rk3588s2", "rockchip,rk3588s"), "rk3588"),
        (("qcom,qcs6490-rb3gen2", "qcom,qcm6490"), "qcs6490"),
        (("radxa,dragon-q6a", "qcom,qcm6490"), "qcs6490"),
        (("nvidia,p3768-0000+p3767-0003", "nvidia,p3767-0003", "nvidia,tegra234"), "jetson"),
        (("raspberrypi,5-model-b", "brcm,bcm2712"), "desktop"),
        (("rockchip,rk3568",), "desktop"),
    ],
)
def test_a_board_is_recognised_by_its_device_tree(
    compatible: tuple[str, ...], board: str, tmp_path: Path
) -> None:
    file = tmp_path / "proc" / "device-tree" / "compatible"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"".join(name.encode() + b"\0" for name in compatible))
    assert detect_board(tmp_path) == board


def test_a_computer_without_a_device_tree_is_a_desktop(tmp_path: Path) -> None:
    assert detect_board(tmp_path) == "desktop"


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("board", BOARDS)
def test_the_parameters_of_a_board_are_understood(board: str) -> None:
    config = read_config(CONFIG / f"{board}.yaml")
    assert config.planning.policy == "sdep", "roles are left to measured costs"
    assert [stream.name for stream in config.streams] == ["camera"]
    engines = {engine.name: engine for engine in config.engines}
    if board in ("rk3588", "qcs6490"):
        assert list(engines) == ["cpu"]
        assert engines["cpu"].cpus == (4, 5, 6, 7) and engines["cpu"].n_threads == 0
        assert 0 < engines["cpu"].n_ctx <= 8192, "8 GB of memory"
        assert config.vision.cache_bytes + config.placement.snapshot_bytes < 256 * 2**20
    if board == "jetson":
        assert [engine.device for engine in engines.values()] == ["cuda:0", "cpu"]
        assert not engines["cpu"].repack
