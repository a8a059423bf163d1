"""All launch files start what exists, with arguments that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from launch_stand_ins import FILES, LAUNCH, declared, load, performed

ROOT = LAUNCH.parent


def executables() -> set[str]:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    return set(re.findall(r"^install_executable\((\w+) ", cmake, re.MULTILINE))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_everything_started_exists(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(path, monkeypatch)
    assert module.__doc__ and f"ros2 launch edge_vlm_ros {path.name}" in module.__doc__
    started = 0
    for action in performed(module):
        if action.kind == "IncludeLaunchDescription":
            (source,) = action.arguments
            included = Path(source.arguments[0])
            passed = dict(action.keywords["launch_arguments"])
            assert set(passed) <= set(declared(load(included, monkeypatch)))
            performed(load(included, monkeypatch), **passed)
        elif action.keywords.get("package") == "edge_vlm_ros":
            assert action.keywords["executable"] in executables()
        for parameters in action.keywords.get("parameters", []):
            assert isinstance(parameters, dict) or Path(parameters).is_file()
        started += action.kind != "LogInfo"
    assert started


def usb_camera(monkeypatch: pytest.MonkeyPatch, **given: str) -> tuple[Any, dict[str, str]]:
    """The component and what edge_vlm.launch.py is given."""
    container, included = performed(load(LAUNCH / "usb_camera.launch.py", monkeypatch), **given)
    (component,) = container.keywords["composable_node_descriptions"]
    return component.keywords, dict(included.keywords["launch_arguments"])


@pytest.mark.parametrize("namespace", ["", "/robot1", "robot1"])
def test_the_node_watches_the_camera_that_is_started(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    component, passed = usb_camera(monkeypatch, namespace=namespace, model="demo")
    # Both drivers publish `image_raw` in their namespace; the node's topic is in its own.
    robot = f"/{namespace.strip('/')}".rstrip("/")
    assert component["namespace"] == f"{robot}/camera"
    assert (passed["cameras"], passed["namespace"]) == ("camera:=camera/image_raw", namespace)
    assert (passed["reliability"], passed["model"]) == ("reliable", "demo")


def test_both_drivers_get_device_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"video_device": "/dev/video2", "width": "320", "height": "240"}
    component, _ = usb_camera(monkeypatch, **given)
    assert component["plugin"] == "v4l2_camera::V4L2Camera"
    assert component["parameters"] == [{"video_device": "/dev/video2", "image_size": [320, 240]}]
    component, _ = usb_camera(monkeypatch, driver="usb_cam", **given)
    assert component["plugin"] == "usb_cam::UsbCamNode"
    assert component["parameters"] == [
        {"video_device": "/dev/video2", "image_width": 320, "image_height": 240}
    ]
    with pytest.raises(ValueError, match="v4l2_camera or usb_cam"):
        usb_camera(monkeypatch, driver="webcam")
