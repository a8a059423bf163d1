"""Starts the node `edge_vlm`, and starts it again when its process dies.

ros2 launch edge_vlm_ros edge_vlm.launch.py board:=rk3588 model:=smolvlm2-500m \
    cameras:=/camera/image_raw
ros2 launch edge_vlm_ros edge_vlm.launch.py cameras:=table:=/camera/image_raw,/back/image_raw

Without `board` the board is recognised; its parameters are those of config/BOARD.yaml. Streams
that `cameras` names have the parameters that the file gives to its stream `camera`. Several robots
in one ROS_DOMAIN_ID have a `namespace` each; topics in `cameras` without a leading slash are in
it:

ros2 launch edge_vlm_ros edge_vlm.launch.py namespace:=robot1 cameras:=camera/image_raw

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
from typing import Any

import yaml
from launch.actions import DeclareLaunchArgument, LogInfo, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode

from edge_vlm_ros.boards import BOARDS, detect_board
from launch import LaunchContext, LaunchDescription

CONFIG = Path(__file__).resolve().parents[1] / "config"
RELIABILITIES = ("", "best_effort", "reliable")
TEMPLATE = "camera"
"""The stream of a board's file whose parameters all cameras get."""

ARGUMENTS = {
    "board": ("", f"{', '.join(BOARDS)}: parameters of config/BOARD.yaml. Empty: recognised"),
    "params_file": ("", "File with ROS parameters of the node, used instead of the board's"),
    "model": (
        "",
        "Model profile: a name in config/models (smolvlm2-500m) or a path. Empty: the file's",
    ),
    "model_profile": ("", "The same as model"),
    "cameras": (
        "",
        "Camera topics, separated by commas, each a topic or name:=topic. Empty: the file's",
    ),
    "reliability": (
        "",
        "best_effort or reliable: how the topics in cameras are received. Empty: the file's",
    ),
    "namespace": ("", "Namespace of the node"),
    "autostart": ("", "true or false: configure and activate by itself. Empty: the file's"),
    "annotated_images": (
        "",
        "true or false: publish answers drawn on their frames. Empty: the file's",
    ),
    "respawn": ("true", "true or false: start the node again when its process has ended"),
    "respawn_delay": ("2.0", "Seconds until then"),
    "log_level": ("info", "debug, info, warn, error or fatal"),
}


# ------------------------------------------------------------------------- cameras
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


# ------------------------------------------------------------------------- parameters
def board_parameters(board: str, cameras: dict[str, str]) -> dict[str, Any]:
    """What config/BOARD.yaml says, by full names. If ``cameras`` are given, each has the
    parameters of the file's stream, which is not there itself then."""
    document = yaml.safe_load((CONFIG / f"{board}.yaml").read_text())
    parameters = _flat("", document["/**"]["ros__parameters"])
    if not cameras:
        return parameters
    prefix = f"{TEMPLATE}."
    of_template = {
        name.removeprefix(prefix): value
        for name, value in parameters.items()
        if name.startswith(prefix)
    }
    others = {name: value for name, value in parameters.items() if not name.startswith(prefix)}
    return others | {
        f"{stream}.{name}": value for stream in cameras for name, value in of_template.items()
    }


def _flat(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            parameters |= _flat(f"{prefix}{name}.", value)
        else:
            parameters[f"{prefix}{name}"] = value
    return parameters


def overrides(value: dict[str, str]) -> dict[str, Any]:
    """Parameters that the launch arguments set over those of the file."""
    parameters: dict[str, Any] = {}
    streams = parse_cameras(value["cameras"])
    reliability = one_of("reliability", value["reliability"], RELIABILITIES)
    if streams:
        parameters["streams"] = list(streams)
    elif reliability:
        raise ValueError("reliability is for the topics in cameras: give them too")
    for name, topic in streams.items():
        parameters[f"{name}.image_topic"] = topic
        if reliability:
            parameters[f"{name}.qos.reliability"] = reliability
    if value["model"] and value["model_profile"] not in ("", value["model"]):
        raise ValueError("model and model_profile are the same argument: give one of them")
    if model := value["model"] or value["model_profile"]:
        parameters["model_profile"] = model_profile(model)
    for name in ("autostart", "annotated_images"):
        if value[name]:
            parameters[name] = truth(name, value[name])
    return parameters


def model_profile(model: str) -> str:
    """The name of a profile of the package, or the full path of another: the node need not run in
    the folder that the path was given in."""
    if (CONFIG / "models" / f"{model}.yaml").is_file():
        return model
    path = Path(model).expanduser()
    if path.is_file():
        return str(path.resolve())
    known = ", ".join(sorted(file.stem for file in (CONFIG / "models").glob("*.yaml")))
    raise ValueError(f"model: {model!r} is neither a file nor one of {known}")


# ------------------------------------------------------------------------- values
def one_of(name: str, text: str, allowed: tuple[str, ...]) -> str:
    """What a launch argument that is one of some words says."""
    if text not in allowed:
        raise ValueError(f"{name} must be {' or '.join(filter(None, allowed))}, not {text!r}")
    return text


def truth(name: str, text: str) -> bool:
    """What a launch argument that is true or false says."""
    return one_of(name, text.lower(), ("true", "false")) == "true"


def seconds(name: str, text: str) -> float:
    """What a launch argument that is a time says."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be seconds, 0 or more, not {text!r}")
    return value


# ------------------------------------------------------------------------- actions
def _node(context: LaunchContext) -> list[Any]:
    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    given = overrides(value)
    if value["params_file"]:
        if value["board"]:
            raise ValueError("board and params_file both name a file with parameters: give one")
        said, parameters = f"parameters of {value['params_file']}", value["params_file"]
    else:
        board = one_of("board", value["board"] or detect_board(), BOARDS)
        how = "" if value["board"] else ", which was recognised"
        said = f"parameters of board {board}{how}"
        parameters = board_parameters(board, parse_cameras(value["cameras"]))
    # Loggers are named after the node, with dots.
    logger = ".".join([*value["namespace"].strip("/").split("/"), "edge_vlm"]).lstrip(".")
    return [
        LogInfo(msg=f"edge_vlm: {said}"),
        LifecycleNode(
            package="edge_vlm_ros",
            executable="edge_vlm",
            name="edge_vlm",
            namespace=value["namespace"],
            output="screen",
            respawn=truth("respawn", value["respawn"]),
            # Ending answers, or a measurement of costs, takes longer than launch waits by itself.
            sigterm_timeout="20",
            respawn_delay=seconds("respawn_delay", value["respawn_delay"]),
            parameters=[parameters, given],
            ros_arguments=["--log-level", f"{logger}:={value['log_level']}"],
        ),
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
