"""launch/edge_vlm.launch.py: its arguments become parameters of the node."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "launch" / "edge_vlm.launch.py"


class StandIn:
    """Keeps the arguments of any launch action."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.arguments = arguments
        self.keywords = keywords

    def perform(self, context: dict[str, str]) -> str:
        return context[self.arguments[0]]


@pytest.fixture
def launch_file(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The launch file, over stand-ins: launch is not on every machine that runs the tests."""
    for module, names in {
        "launch": ("LaunchContext", "LaunchDescription"),
        "launch.actions": ("DeclareLaunchArgument", "OpaqueFunction"),
        "launch.substitutions": ("LaunchConfiguration",),
        "launch_ros": (),
        "launch_ros.actions": ("LifecycleNode",),
    }.items():
        stand_in = ModuleType(module)
        for name in names:
            setattr(stand_in, name, type(name, (StandIn,), {}))
        monkeypatch.setitem(sys.modules, module, stand_in)
    spec = importlib.util.spec_from_file_location("edge_vlm_launch", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("", {}),
        ("/front/image_raw", {"front": "/front/image_raw"}),
        ("/cam/color/image_raw/compressed", {"cam_color": "/cam/color/image_raw/compressed"}),
        ("/image_raw", {"image_raw": "/image_raw"}),
        ("table:=/a/b, shelf:=/c", {"table": "/a/b", "shelf": "/c"}),
        ("/1st/image", {"camera_1st": "/1st/image"}),
    ],
)
def test_cameras(launch_file: ModuleType, text: str, streams: dict[str, str]) -> None:
    assert launch_file.parse_cameras(text) == streams


@pytest.mark.parametrize("text", [":=/topic", "name:=", "/a/image_raw,/a/image_rect"])
def test_wrong_cameras_are_explained(launch_file: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="cameras:"):
        launch_file.parse_cameras(text)


def test_only_given_arguments_override_the_file(launch_file: ModuleType) -> None:
    assert launch_file.overrides("", "", "") == {}
    assert launch_file.overrides("table:=/t", "demo", "False") == {
        "streams": ["table"],
        "table.image_topic": "/t",
        "model_profile": "demo",
        "autostart": False,
    }
    with pytest.raises(ValueError, match="autostart"):
        launch_file.overrides("", "", "perhaps")


def test_the_node_gets_file_overrides_namespace_and_log_level(launch_file: ModuleType) -> None:
    description = launch_file.generate_launch_description()
    declared = {
        action.arguments[0]: action.keywords
        for action in description.arguments[0]
        if type(action).__name__ == "DeclareLaunchArgument"
    }
    assert set(declared) == {
        "params_file",
        "model_profile",
        "cameras",
        "namespace",
        "autostart",
        "respawn",
        "respawn_delay",
        "log_level",
    }
    assert all(keywords["description"] for keywords in declared.values())
    assert Path(declared["params_file"]["default_value"]).is_file()
    context = {name: keywords["default_value"] for name, keywords in declared.items()}
    context |= {"namespace": "/robot", "cameras": "table:=/t", "log_level": "debug"}
    (node,) = launch_file._node(context)
    assert node.keywords["package"] == "edge_vlm_ros" and node.keywords["namespace"] == "/robot"
    assert node.keywords["parameters"][0] == context["params_file"]
    assert node.keywords["parameters"][1]["table.image_topic"] == "/t"
    assert node.keywords["ros_arguments"] == ["--log-level", "robot.edge_vlm:=debug"]
    assert (node.keywords["respawn"], node.keywords["respawn_delay"]) == (True, 2.0)
    context |= {"respawn": "false", "respawn_delay": "0.5"}
    (node,) = launch_file._node(context)
    assert (node.keywords["respawn"], node.keywords["respawn_delay"]) == (False, 0.5)


@pytest.mark.parametrize(
    ("name", "text"),
    [("respawn", "perhaps"), ("respawn_delay", "soon"), ("respawn_delay", "-1")],
)
def test_wrong_respawning_is_explained(launch_file: ModuleType, name: str, text: str) -> None:
    context = {argument: default for argument, (default, _) in launch_file.ARGUMENTS.items()}
    with pytest.raises(ValueError, match=name):
        launch_file._node({**context, name: text})
