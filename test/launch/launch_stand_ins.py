"""Launch files over stand-ins of launch and launch_ros, which are not on every machine that runs
the tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
FILES = sorted(LAUNCH.glob("*.launch.py"))

# What there is in launch and launch_ros: nothing else can be imported.
_NAMES = {
    "launch": ("LaunchContext", "LaunchDescription"),
    "launch.actions": (
        "DeclareLaunchArgument",
        "IncludeLaunchDescription",
        "LogInfo",
        "OpaqueFunction",
    ),
    "launch.launch_description_sources": ("PythonLaunchDescriptionSource",),
    "launch.substitutions": ("LaunchConfiguration",),
    "launch_ros": (),
    "launch_ros.actions": ("ComposableNodeContainer", "LifecycleNode", "Node"),
    "launch_ros.descriptions": ("ComposableNode",),
}


class StandIn:
    """Keeps the arguments of any launch action."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.arguments = arguments
        self.keywords = keywords

    def perform(self, context: dict[str, str]) -> str:
        return context[self.arguments[0]]

    @property
    def kind(self) -> str:
        return type(self).__name__


def load(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A launch file as a module."""
    for module, names in _NAMES.items():
        stand_in = ModuleType(module)
        for name in names:
            setattr(stand_in, name, type(name, (StandIn,), {}))
        monkeypatch.setitem(sys.modules, module, stand_in)
    spec = importlib.util.spec_from_file_location(path.stem.replace(".", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def declared(module: ModuleType) -> dict[str, str]:
    """The arguments that a launch file declares, with their defaults."""
    actions = module.generate_launch_description().arguments[0]
    arguments = [action for action in actions if action.kind == "DeclareLaunchArgument"]
    assert all(argument.keywords["description"] for argument in arguments)
    return {a.arguments[0]: a.keywords["default_value"] for a in arguments}


def performed(module: ModuleType, **given: str) -> list[StandIn]:
    """What a launch file starts when it is given these arguments."""
    defaults = declared(module)
    assert set(given) <= set(defaults), "an argument that the launch file does not have"
    context = defaults | given
    actions: list[StandIn] = []
    for action in module.generate_launch_description().arguments[0]:
        if action.kind == "OpaqueFunction":
            actions += action.keywords["function"](context)
        elif action.kind != "DeclareLaunchArgument":
            actions.append(action)
    return actions
