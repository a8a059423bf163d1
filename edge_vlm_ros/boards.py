"""Which board this is. Each has its parameters in config/BOARD.yaml."""

from __future__ import annotations

from pathlib import Path

BOARDS = ("desktop", "rk3588", "qcs6490", "jetson")

_DEVICE_TREE = Path("proc/device-tree/compatible")
_COMPATIBLE = {
    "rockchip,rk3588": "rk3588",  # rockchip,rk3588s too
    "qcom,qcs6490": "qcs6490",
    "qcom,qcm6490": "qcs6490",
    "qcom,sc7280": "qcs6490",
    "nvidia,tegra": "jetson",
}


def detect_board(root: Path = Path("/")) -> str:
    """The board by its device tree; ``desktop`` for any computer that is none of them."""
    try:
        names = (root / _DEVICE_TREE).read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "desktop"
    for name in names:
        for beginning, board in _COMPATIBLE.items():
            if name.startswith(beginning):
                return board
    return "desktop"
