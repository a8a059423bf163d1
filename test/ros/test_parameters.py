"""The parameter table: complete, described, checked."""

from __future__ import annotations

from typing import Any

import pytest

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.ros.parameters import (
    NODE_PARAMETERS,
    STREAM_PARAMETERS,
    Change,
    ParameterSpec,
    change_problem,
    find_spec,
    value_problem,
)
from edge_vlm_ros.ros.settings import camera_settings, runtime_config, stream_config
from edge_vlm_ros.ros.share import find_model_profile
from edge_vlm_ros.runtime import QuestionLimits, StreamConfig, VisionConfig

ALL = (*NODE_PARAMETERS, *STREAM_PARAMETERS)


def defaults(specs: tuple[ParameterSpec, ...]) -> dict[str, Any]:
    return {spec.name: spec.default for spec in specs}


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_every_parameter_is_described_and_its_default_allowed(spec: ParameterSpec) -> None:
    descriptor = spec.descriptor()
    assert descriptor.description and spec.change.value in descriptor.additional_constraints
    assert descriptor.read_only == (spec.change is Change.START)
    assert all(choice in descriptor.additional_constraints for choice in spec.choices)
    if isinstance(spec.default, int | float) and not isinstance(spec.default, bool):
        ranges = [*descriptor.integer_range, *descriptor.floating_point_range]
        assert len(ranges) == 1, "a number needs a range"
        assert ranges[0].from_value <= spec.default <= ranges[0].to_value
    if spec.choices:
        assert spec.default in spec.choices


def test_names_are_unique() -> None:
    for table in (NODE_PARAMETERS, STREAM_PARAMETERS):
        assert len({spec.name for spec in table}) == len(table)


def test_a_streams_parameter_is_found_by_its_full_name() -> None:
    assert find_spec("table.max_fps") is find_spec("shelf.max_fps") is not None
    assert find_spec("table.nothing") is None
    assert find_spec("max_fps") is None


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("table.transport", "pigeon", "auto, raw, compressed"),
        ("engine.kv_type", "q3", "q8_0"),
        ("streams", [], "at least one"),
        ("streams", ["a", "a"], "different"),
        ("streams", ["Front Camera"], "'Front Camera'"),
        ("streams", ["engine"], "prefix"),
        ("engine.name", "GPU 0", "lower-case"),
    ],
)
def test_wrong_values_are_explained(name: str, value: Any, part: str) -> None:
    assert part in str(value_problem(name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [("table.transport", "raw"), ("streams", ["table", "front_2"]), ("use_sim_time", True)],
)
def test_good_values_pass(name: str, value: Any) -> None:
    assert value_problem(name, value) is None


def test_only_live_parameters_change_on_a_configured_node() -> None:
    assert "clean up the node" in str(change_problem("table.max_fps", configured=True))
    assert change_problem("table.max_fps", configured=False) is None
    assert change_problem("silent_camera_timeout", configured=True) is None


def test_the_defaults_are_those_of_the_runtime() -> None:
    node = defaults(NODE_PARAMETERS)
    config = runtime_config(node, {"table": defaults(STREAM_PARAMETERS)})
    assert config.streams == (StreamConfig("table"),)
    assert config.engine == EngineConfig()
    assert config.questions == QuestionLimits()
    assert config.vision == VisionConfig()
    assert config.profile.name == "demo"


def test_a_streams_values_reach_its_configuration() -> None:
    values = {
        **defaults(STREAM_PARAMETERS),
        "max_frames": 5,
        "keep_frames": 0,
        "max_turns": 0,
        "max_tokens": 900,
        "on_full": "reject",
        "pending_policy": "reject",
        "max_pending_frames": 3,
        "max_fps": 2.0,
        "change_threshold": 4.0,
    }
    config = stream_config("table", values)
    history = config.history
    assert (history.max_frames, history.keep_frames, history.max_turns) == (5, 0, 0)
    assert (history.max_tokens, history.on_full) == (900, "reject")
    assert (config.max_fps, config.change_threshold) == (2.0, 4.0)
    assert (config.max_pending_frames, config.pending_policy) == (3, "reject")


@pytest.mark.parametrize(
    ("topic", "transport", "expected"),
    [
        ("/cam/image_raw", "auto", "raw"),
        ("/cam/image_raw/compressed", "auto", "compressed"),
        ("/cam/jpeg", "compressed", "compressed"),
        ("/cam/compressed", "raw", "raw"),
    ],
)
def test_the_transport_follows_the_topic_unless_told(
    topic: str, transport: str, expected: str
) -> None:
    values = {**defaults(STREAM_PARAMETERS), "image_topic": topic, "transport": transport}
    assert camera_settings("table", values).transport == expected


def test_a_stream_without_a_topic_has_one_after_its_name_with_sensor_qos() -> None:
    settings = camera_settings("table", defaults(STREAM_PARAMETERS))
    assert settings.topic == "table/image_raw"
    qos = settings.qos()
    assert (qos.reliability.name, qos.durability.name, qos.depth) == ("BEST_EFFORT", "VOLATILE", 5)


def test_model_profiles_are_found_by_name_and_path() -> None:
    by_name = find_model_profile("demo")
    assert find_model_profile("") == by_name == find_model_profile(str(by_name))
    assert find_model_profile("config/models/demo.yaml") == by_name
    with pytest.raises(FileNotFoundError, match="nothing.*demo"):
        find_model_profile("nothing")
