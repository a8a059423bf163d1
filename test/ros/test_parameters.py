"""The parameter table: complete, described, checked."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.ros.parameter_checks import (
    change_problem,
    engine_of,
    find_spec,
    moved_parameter,
    policy_problem,
    value_problem,
)
from edge_vlm_ros.ros.parameters import (
    ENGINE_PARAMETERS,
    NODE_PARAMETERS,
    STREAM_PARAMETERS,
    Change,
    ParameterSpec,
)
from edge_vlm_ros.ros.settings import (
    camera_settings,
    engine_config,
    runtime_config,
    stream_config,
)
from edge_vlm_ros.ros.share import find_model_profile
from edge_vlm_ros.runtime import ConfigError, QuestionLimits, StreamConfig, VisionConfig
from edge_vlm_ros.runtime.config import PlacementConfig, PlanningConfig

TABLES = (NODE_PARAMETERS, STREAM_PARAMETERS, ENGINE_PARAMETERS)
ALL = tuple(spec for table in TABLES for spec in table)


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
    for table in TABLES:
        assert len({spec.name for spec in table}) == len(table)


def test_a_streams_parameter_is_found_by_its_full_name() -> None:
    assert find_spec("table.max_fps") is find_spec("shelf.max_fps") is not None
    assert find_spec("table.nothing") is None
    assert find_spec("max_fps") is None
    assert find_spec("engine.max_fps") is None


def test_an_engines_parameter_is_found_by_its_full_name() -> None:
    assert find_spec("engine.cpu.n_threads") is find_spec("engine.gpu_2.n_threads") is not None
    assert (engine_of("engine.gpu_2.n_threads"), engine_of("table.qos.depth")) == ("gpu_2", None)
    assert find_spec("engine.n_threads") is None
    assert find_spec("engine.cpu.max_fps") is find_spec("cpu.n_threads") is None


def test_parameters_of_the_time_of_one_engine_are_told_where_they_are_now() -> None:
    moved = str(moved_parameter("engine.n_threads", ("cpu", "gpu")))
    assert "engine.cpu.n_threads and engine.gpu.n_threads" in moved
    assert "`engines`" in str(moved_parameter("engine.name", ("cpu",)))
    for name in ("engine.cpu.n_threads", "engine.nothing", "table.n_threads", "n_threads"):
        assert moved_parameter(name, ("cpu",)) is None


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("table.transport", "pigeon", "auto, raw, compressed"),
        ("engine.gpu.kv_type", "q3", "q8_0"),
        ("questions.commit_order", "random", "completion, arrival"),
        ("streams", [], "at least one"),
        ("streams", ["a", "a"], "different"),
        ("streams", ["Front Camera"], "'Front Camera'"),
        ("streams", ["engine"], "prefix"),
        ("streams", ["engines"], "prefix"),
        ("streams", ["placement"], "prefix"),
        ("streams", ["planning"], "prefix"),
        ("planning.objective", "speed", "completion, first_token"),
        ("planning.calibration", "sometimes", "auto, always, never"),
        ("engines", [], "at least one engine"),
        ("engines", ["cpu", "cpu"], "different"),
        ("engines", ["GPU 0"], "engine name 'GPU 0'"),
        ("engines", ["9"], "starting with a letter"),
        ("engine.gpu.device", "vulkan:first", "vulkan:<n>"),
        ("engine.gpu.device", "rpc:nowhere", "<host>:<port>"),
        ("engine.cpu.cpus", ["a"], "list of whole numbers from 0"),
        ("engine.cpu.cpus", [0, -1], "not [0, -1]"),
        ("engine.cpu.cpus", [True], "whole numbers"),
        ("engine.cpu.cpus", 3, "list of whole numbers"),
        ("engine.cpu.cpus", None, "list of whole numbers"),
    ],
)
def test_wrong_values_are_explained(name: str, value: Any, part: str) -> None:
    assert part in str(value_problem(name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("table.transport", "raw"),
        ("streams", ["table", "front_2"]),
        ("engines", ["cpu", "gpu_2", "table"]),
        ("engine.cpu.cpus", []),
        ("engine.far.device", "rpc:192.0.2.7:50052"),
        ("engine.cpu.cpus", array("q", [0, 3])),
        ("use_sim_time", True),
    ],
)
def test_good_values_pass(name: str, value: Any) -> None:
    assert value_problem(name, value) is None


def test_only_live_parameters_change_on_a_configured_node() -> None:
    assert "clean up the node" in str(change_problem("table.max_fps", configured=True))
    assert change_problem("table.max_fps", configured=False) is None
    assert change_problem("silent_camera_timeout", configured=True) is None
    assert change_problem("table.ingest_engine", configured=True) is None
    assert "clean up the node" in str(change_problem("engine.cpu.exact", configured=True))
    assert change_problem("planning.objective", configured=True) is None
    assert "clean up" in str(change_problem("planning.calibration", configured=True))


def test_the_defaults_are_those_of_the_runtime() -> None:
    node = defaults(NODE_PARAMETERS)
    config = runtime_config(
        node,
        {"table": defaults(STREAM_PARAMETERS)},
        {name: defaults(ENGINE_PARAMETERS) for name in node["engines"]},
    )
    assert config.streams == (StreamConfig("table"),)
    assert config.engines == (EngineConfig(),)
    assert config.placement == PlacementConfig()
    assert config.planning == PlanningConfig()
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
        "ingest_engine": "second",
    }
    config = stream_config("table", values)
    history = config.history
    assert (history.max_frames, history.keep_frames, history.max_turns) == (5, 0, 0)
    assert (history.max_tokens, history.on_full) == (900, "reject")
    assert (config.max_fps, config.change_threshold) == (2.0, 4.0)
    assert (config.max_pending_frames, config.pending_policy) == (3, "reject")
    assert config.ingest_engine == "second"


def test_an_engines_values_reach_its_configuration() -> None:
    values = {
        **defaults(ENGINE_PARAMETERS),
        "device": "rpc",
        "n_threads": 3,
        "cpus": [0],
        "n_ctx": 700,
        "kv_type": "f16",
        "exact": False,
        "max_parallel": 2,
        "chunk_tokens": 16,
        "transfer_tokens": 99,
        "repack": False,
        "ingest_share": 0.5,
    }
    assert engine_config("second", values, allow_remote=True) == EngineConfig(
        name="second",
        device="rpc",
        n_threads=3,
        cpus=(0,),
        n_ctx=700,
        kv_type="f16",
        exact=False,
        max_parallel=2,
        chunk_tokens=16,
        transfer_tokens=99,
        repack=False,
        ingest_share=0.5,
        allow_remote=True,
    )
    assert set(values) | {"name", "allow_remote"} == set(EngineConfig.__dataclass_fields__)


def test_planning_reaches_its_configuration() -> None:
    given = {
        "planning.policy": "batched:second",
        "planning.objective": "first_token",
        "planning.calibration": "never",
        "planning.calibration_folder": "/tmp/measured",
        "planning.publish_plans": False,
    }
    assert set(given) == {s.name for s in NODE_PARAMETERS if s.name.startswith("planning.")}
    config = runtime_config(
        defaults(NODE_PARAMETERS) | given,
        {"table": defaults(STREAM_PARAMETERS)},
        {name: defaults(ENGINE_PARAMETERS) for name in ("cpu", "second")},
    )
    assert config.planning == PlanningConfig(
        "batched:second", "first_token", "never", "/tmp/measured"
    )


@pytest.mark.parametrize(
    ("policy", "part"),
    [("fastest", "'fastest'"), ("single:gpu", "gpu"), ("single", "single"), ("", "''")],
)
def test_a_policy_that_cannot_be_is_explained(policy: str, part: str) -> None:
    problem = str(policy_problem(policy, ["cpu", "second"], ["table"], "completion"))
    assert problem.startswith("planning.policy: ") and part in problem
    with pytest.raises(ConfigError, match="planning.policy: "):
        runtime_config(
            defaults(NODE_PARAMETERS) | {"planning.policy": policy},
            {"table": defaults(STREAM_PARAMETERS)},
            {"cpu": defaults(ENGINE_PARAMETERS)},
        )


@pytest.mark.parametrize(
    "policy", ["sdep", "single:cpu", "batched:second", "idle_first", "isolated", "round_robin"]
)
def test_every_policy_that_the_parameter_names_is_one(policy: str) -> None:
    spec = find_spec("planning.policy")
    assert spec is not None and policy.partition(":")[0] in spec.description
    assert policy_problem(policy, ["cpu", "second"], ["table"], "completion") is None


def test_a_remote_engine_needs_leave() -> None:
    values = {**defaults(ENGINE_PARAMETERS), "device": "rpc:192.0.2.7:50052"}
    with pytest.raises(ConfigError, match="allow_remote"):
        engine_config("far", values, allow_remote=False)
    assert engine_config("far", values, allow_remote=True).device == "rpc:192.0.2.7:50052"


def test_what_leaves_the_machine_unprotected_says_so() -> None:
    spec = find_spec("allow_remote")
    assert spec is not None and spec.default is False
    assert "neither authentication nor encryption" in spec.description


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
