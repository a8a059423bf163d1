"""Starts the node `edge_vlm`, and starts it again when its process dies.

ros2 launch edge_vlm_ros edge_vlm.launch.py cameras:=table:=/camera/image_raw

What the node survives by itself: an engine that reports an error, and an RPC server that is lost,
even in the middle of a native call. llama.cpp would abort the process there; its thread is parked
for ever instead, the engine is marked failed and started again, and its questions go on on another
engine.

What no code in the process can survive: being killed for want of memory, a segmentation fault, an
abort or a C++ exception in a thread that a backend's driver has made for itself (a lost Vulkan
device). For these there is `respawn`. A respawned node configures and activates itself if
`autostart` is true, and has lost all histories: it watches the cameras anew.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode

from launch import LaunchContext, LaunchDescription

ARGUMENTS = {
    "params_file": (
        str(Path(__file__).resolve().parents[1] / "config" / "desktop.yaml"),
        "File with ROS parameters of the node",
    ),
    "model_profile": ("", "Model profile: a name in config/models or a path. Empty: params_file's"),
    "cameras": (
        "",
        "Camera topics, separated by commas, each a topic or name:=topic. Empty: params_file's",
    ),
    "namespace": ("", "Namespace of the node"),
    "autostart": ("", "true or false: configure and activate by itself. Empty: params_file's"),
    "respawn": ("true", "true or false: start the node again when its process has ended"),
    "respawn_delay": ("2.0", "Seconds until then"),
    "log_level": ("info", "debug, info, warn, error or fatal"),
}


def parse_cameras(text: str) -> dict[str, str]:
    """Stream name -> topic, from "topic,name:=topic,...".

    A topic without a name is called after its parts: /front/image_raw becomes front.
    """
    cameras: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, assigned, topic = entry.partition(":=")
        if not assigned:
            name, topic = _name_of(entry), entry
        if not name or not topic:
            raise ValueError(f"cameras: {entry!r} is neither a topic nor name:=topic")
        if name in cameras:
            raise ValueError(f"cameras: two streams are called {name!r}: use name:=topic")
        cameras[name] = topic
    return cameras


def _name_of(topic: str) -> str:
    parts = [part for part in topic.lower().split("/") if part]
    while len(parts) > 1 and parts[-1].startswith(("image", "compressed")):
        parts.pop()
    name = re.sub(r"[^a-z0-9_]", "_", "_".join(parts))
    return name if name[:1].isalpha() else f"camera_{name}"


def overrides(cameras: str, model_profile: str, autostart: str) -> dict[str, object]:
    """Parameters that the launch arguments set over those of the file."""
    parameters: dict[str, object] = {}
    streams = parse_cameras(cameras)
    if streams:
        parameters["streams"] = list(streams)
        for name, topic in streams.items():
            parameters[f"{name}.image_topic"] = topic
    if model_profile:
        parameters["model_profile"] = model_profile
    if autostart:
        parameters["autostart"] = truth("autostart", autostart)
    return parameters


def truth(name: str, text: str) -> bool:
    """What a launch argument that is true or false says."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, not {text!r}")
    return text.lower() == "true"


def seconds(name: str, text: str) -> float:
    """What a launch argument that is a time says."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be seconds, 0 or more, not {text!r}")
    return value


def _node(context: LaunchContext) -> list[LifecycleNode]:
    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    # Loggers are named after the node, with dots.
    logger = ".".join([*value["namespace"].strip("/").split("/"), "edge_vlm"]).lstrip(".")
    return [
        LifecycleNode(
            package="edge_vlm_ros",
            executable="edge_vlm",
            name="edge_vlm",
            namespace=value["namespace"],
            output="screen",
            respawn=truth("respawn", value["respawn"]),
            respawn_delay=seconds("respawn_delay", value["respawn_delay"]),
            parameters=[
                value["params_file"],
                overrides(value["cameras"], value["model_profile"], value["autostart"]),
            ],
            ros_arguments=["--log-level", f"{logger}:={value['log_level']}"],
        )
    ]


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=description)
                for name, (default, description) in ARGUMENTS.items()
            ),
            OpaqueFunction(function=_node),
        ]
    )
