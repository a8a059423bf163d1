"""From parameter values to what the runtime and the subscriptions are made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.model_profile import load_profile
from edge_vlm_ros.runtime.config import (
    ConfigError,
    HistoryConfig,
    PlacementConfig,
    PlanningConfig,
    QuestionLimits,
    RuntimeConfig,
    StreamConfig,
    VisionConfig,
)

from .parameter_checks import policy_problem
from .share import find_model_profile

Values = Mapping[str, Any]
"""Parameter name -> value."""

_OF_THE_NODE = "planning.publish_plans"

Transport = Literal["raw", "compressed"]


@dataclass(frozen=True)
class CameraSettings:
    """How one stream's camera topic is subscribed to."""

    stream: str
    topic: str
    transport: Transport
    reliability: str
    depth: int
    durability: str

    def qos(self) -> QoSProfile:
        return QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=self.depth,
            reliability=ReliabilityPolicy[self.reliability.upper()],
            durability=DurabilityPolicy[self.durability.upper()],
        )


def camera_settings(stream: str, values: Values) -> CameraSettings:
    """The subscription of ``stream``; ``values`` are its parameters without the stream's name."""
    topic = values["image_topic"] or f"{stream}/image_raw"
    transport: Transport = "compressed" if values["transport"] == "compressed" else "raw"
    if values["transport"] == "auto" and topic.endswith("/compressed"):
        transport = "compressed"
    return CameraSettings(
        stream=stream,
        topic=topic,
        transport=transport,
        reliability=values["qos.reliability"],
        depth=values["qos.depth"],
        durability=values["qos.durability"],
    )


def runtime_config(
    node: Values, streams: Mapping[str, Values], engines: Mapping[str, Values]
) -> RuntimeConfig:
    """The runtime's configuration from the node's parameters and those of each stream and engine.

    Reads the model profile. Raises FileNotFoundError, ProfileError and ConfigError with texts
    that say which setting to change.
    """
    return RuntimeConfig(
        profile=load_profile(find_model_profile(node["model_profile"])),
        streams=tuple(stream_config(name, values) for name, values in streams.items()),
        engines=tuple(
            engine_config(name, values, node["allow_remote"]) for name, values in engines.items()
        ),
        questions=QuestionLimits(**_prefixed(node, "questions.")),
        vision=VisionConfig(**_prefixed(node, "vision.")),
        placement=PlacementConfig(**_prefixed(node, "placement.")),
        planning=_planning_config(node, tuple(streams), tuple(engines)),
    )


def _planning_config(
    node: Values, streams: tuple[str, ...], engines: tuple[str, ...]
) -> PlanningConfig:
    values = {name: value for name, value in node.items() if name != _OF_THE_NODE}
    config = PlanningConfig(**_prefixed(values, "planning."))
    problem = policy_problem(config.policy, engines, streams, config.objective)
    if problem is not None:
        raise ConfigError(problem)
    return config


def engine_config(engine: str, values: Values, allow_remote: bool) -> EngineConfig:
    """One engine's configuration. Raises ConfigError."""
    settings = {**values, "cpus": tuple(values["cpus"])}
    try:
        return EngineConfig(name=engine, allow_remote=allow_remote, **settings)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def stream_config(stream: str, values: Values) -> StreamConfig:
    """One stream's configuration; what its parameters leave open is the model profile's."""
    return StreamConfig(
        name=stream,
        history=HistoryConfig(
            max_frames=values["max_frames"] or None,
            keep_frames=_unless_negative(values["keep_frames"]),
            max_turns=_unless_negative(values["max_turns"]),
            max_tokens=values["max_tokens"] or None,
            on_full=values["on_full"],
        ),
        max_fps=values["max_fps"],
        change_threshold=values["change_threshold"],
        max_pending_frames=values["max_pending_frames"],
        pending_policy=values["pending_policy"],
        ingest_engine=values["ingest_engine"],
    )


def _unless_negative(value: int) -> int | None:
    return None if value < 0 else value


def _prefixed(values: Values, prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
