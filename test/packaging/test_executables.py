"""What `ros2 run edge_vlm_ros <name>` and launch files start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = re.findall(r"^install_executable\((\w+) ", (ROOT / "CMakeLists.txt").read_text(), re.M)


def _installed(name: str) -> Path:
    prefixes = os.environ["AMENT_PREFIX_PATH"].split(os.pathsep)
    places = [Path(prefix) / "lib" / "edge_vlm_ros" / name for prefix in prefixes]
    return next((place for place in places if place.exists()), places[0])


@pytest.mark.parametrize("name", NAMES)
def test_executable_may_be_executed(name: str) -> None:
    assert os.access(_installed(name), os.X_OK), f"{_installed(name)} is not executable"


@pytest.mark.parametrize("name", NAMES)
def test_executable_finds_its_code(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, _installed(name), "--help"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert "usage: ros2 run edge_vlm_ros" in ended.stdout


@pytest.mark.parametrize("name", ["edge_vlm", "demo_camera"])
@pytest.mark.parametrize(
    "arguments", [["--param-file", "x.yaml"], ["--ros-args", "--params-file", "/nowhere.yaml"]]
)
def test_unusable_arguments_are_refused(name: str, arguments: list[str]) -> None:
    command = [sys.executable, _installed(name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "x.yaml" in ended.stderr or "/nowhere.yaml" in ended.stderr
    assert "Traceback" not in ended.stderr
