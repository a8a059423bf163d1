"""What a node with several engines shows and lets one change, over real ROS 2.

The runtime is a stand-in: the engines themselves are used in test_two_engines.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from edge_vlm_ros.msg import EngineStatus, PlacementStatus
from edge_vlm_ros.srv import EvictState, ListEngines, MoveIngestion
from harness import World, heard, level_of, set_parameter, wait_for, world
from rclpy.context import Context
from stand_in_runtime import StandInRuntime, StandIns

from edge_vlm_ros.ros.node import EdgeVlmNode
from edge_vlm_ros.ros.settings import runtime_config
from edge_vlm_ros.runtime import RuntimeConfig
from edge_vlm_ros.runtime.status import PairProbe, Resident

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "config").glob("*.yaml"))


@pytest.fixture
def stand_ins() -> StandIns:
    return StandIns()


@pytest.fixture
def made(stand_ins: StandIns) -> Iterator[World]:
    """An unconfigured node with two engines."""
    with world(
        make_runtime=stand_ins,
        engines=["cpu", "second"],
        engine__second__device="rpc",
        status_period=0.1,
        diagnostics__period=0.1,
    ) as world_made:
        yield world_made


@pytest.fixture
def runtime(made: World, stand_ins: StandIns) -> StandInRuntime:
    """Of the node, which is active."""
    assert made.node.change("configure") and made.node.change("activate")
    return stand_ins.newest


# ------------------------------------------------------------------------- watching
def test_every_engine_has_a_topic_and_an_entry_in_diagnostics(
    made: World, runtime: StandInRuntime
) -> None:
    topics = {
        name: heard(made, EngineStatus, f"/edge_vlm/engines/{name}/status")
        for name in ("cpu", "second")
    }
    diagnostics = heard(made, DiagnosticArray, "/diagnostics")
    runtime.readings["second"] = replace(
        runtime.readings["second"],
        state="failed",
        error="the server is gone",
        retry_in_s=4.0,
        failures=2,
    )
    second = wait_for(
        lambda: topics["second"] and topics["second"][-1].state == "failed" and topics["second"],
        "the second engine's status",
    )[-1]
    assert (second.engine, second.error) == ("second", "the server is gone")
    assert (second.failures, second.retry_in_s) == (2, 4.0)
    assert second.memory_snapshots_bytes == runtime.placement.snapshot_bytes
    wait_for(lambda: topics["cpu"] and topics["cpu"][-1].state == "ready", "the first engine's")
    told = (2, "failed: the server is gone; started again in 4.0 s")
    wait_for(lambda: level_of(diagnostics, "edge_vlm: engine second") == told, "the error")
    assert level_of(diagnostics, "edge_vlm: engine cpu")[0] == 0
    listed = made.client.call(ListEngines, "list_engines").engines
    assert [engine.state for engine in listed] == ["ready", "failed"]


def test_all_engines_are_shown_while_they_load(made: World, stand_ins: StandIns) -> None:
    seconds = heard(made, EngineStatus, "/edge_vlm/engines/second/status")
    diagnostics = heard(made, DiagnosticArray, "/diagnostics")
    stand_ins.held = True
    configuring = threading.Thread(target=made.node.change, args=("configure",))
    configuring.start()
    try:
        wait_for(lambda: stand_ins.newest and stand_ins.newest.loading.is_set(), "loading")
        loading = wait_for(lambda: seconds and seconds[-1], "the second engine's status")
        assert loading.state == "starting"
        told = (0, "loading: language model 40 %")
        for name in ("cpu", "second"):
            wait_for(lambda n=name: level_of(diagnostics, f"edge_vlm: engine {n}") == told, name)
        # Changed meanwhile: what was read at the beginning is not the last word.
        assert set_parameter(made, "table.ingest_engine", "second") == (True, "")
    finally:
        stand_ins.newest.go_on.set()
        configuring.join()
    assert stand_ins.newest.ingestion == {"table": "second"}


def test_the_placement_is_published_and_incompatible_engines_are_warned_of(
    made: World, runtime: StandInRuntime
) -> None:
    placements = heard(made, PlacementStatus, "/edge_vlm/placement")
    diagnostics = heard(made, DiagnosticArray, "/diagnostics")
    version = runtime.stream_status("table").published
    runtime.placement = replace(
        runtime.placement,
        residents=(Resident("second", version, 40, 800, 0.5, "copy", 1),),
        probes=(PairProbe("cpu", "second", "incompatible", "KV types differ"),),
        failovers=7,
    )
    newest = wait_for(
        lambda: placements and placements[-1].failovers == 7 and placements[-1], "the placement"
    )
    assert (newest.path_local, newest.path_import, newest.snapshot_hits) == (3, 2, 1)
    assert newest.residents[0].engine == "second" and newest.residents[0].readers == 1
    assert newest.probes[0].detail == "KV types differ"
    told = (1, "KV cannot be moved cpu -> second: replay is used")
    wait_for(lambda: level_of(diagnostics, "edge_vlm: placement") == told, "the warning")


# ------------------------------------------------------------------------- changing
def test_ingestion_moves_by_service_and_the_parameter_follows(
    made: World, runtime: StandInRuntime
) -> None:
    moved = made.client.call(MoveIngestion, "move_ingestion", stream="table", engine="second")
    assert moved.success and "table" in moved.message and "second" in moved.message
    assert runtime.ingestion == {"table": "second"}
    assert made.node.get_parameter("table.ingest_engine").value == "second"
    for request, part in (
        ({"stream": "nowhere", "engine": "cpu"}, "nowhere"),
        ({"stream": "table", "engine": "third"}, "third"),
    ):
        wrong = made.client.call(MoveIngestion, "move_ingestion", **request)
        assert not wrong.success and part in wrong.message
    assert made.node.get_parameter("table.ingest_engine").value == "second"
    assert made.client.call(MoveIngestion, "move_ingestion", stream="table").success
    assert runtime.ingestion == {"table": "cpu"}, "what the policy chooses"


def test_ingestion_moves_by_parameter_on_a_running_node(
    made: World, runtime: StandInRuntime
) -> None:
    assert set_parameter(made, "table.ingest_engine", "second") == (True, "")
    assert runtime.ingestion == {"table": "second"}
    done, reason = set_parameter(made, "table.ingest_engine", "third")
    assert not done and "no engine 'third'; there are: cpu, second" in reason
    assert runtime.ingestion == {"table": "second"}
    assert set_parameter(made, "table.ingest_engine", "") == (True, "")
    assert runtime.ingestion == {"table": "cpu"}


def test_a_move_that_fails_after_the_parameter_was_set_is_logged(
    made: World,
    runtime: StandInRuntime,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(stream: str, engine: str) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(runtime, "move_ingestion", fail)
    set_parameter(made, "table.ingest_engine", "second")
    assert "ingestion of stream table was not moved: no room" in capfd.readouterr().err


def test_state_is_given_up_by_service(made: World, runtime: StandInRuntime) -> None:
    gone = made.client.call(EvictState, "evict_state", stream="table", engine="second")
    assert gone.success and "second" in gone.message and runtime.evicted == [("table", "second")]
    runtime.evictable = False
    kept = made.client.call(EvictState, "evict_state", stream="table", engine="second")
    assert not kept.success and "nothing given up" in kept.message
    unknown = made.client.call(EvictState, "evict_state", stream="table", engine="third")
    assert not unknown.success and "third" in unknown.message


def test_services_of_an_unconfigured_node_say_what_to_do(made: World) -> None:
    for kind, name in ((MoveIngestion, "move_ingestion"), (EvictState, "evict_state")):
        response = made.client.call(kind, name, stream="table", engine="cpu")
        assert not response.success and "ros2 lifecycle set /edge_vlm configure" in response.message


# ------------------------------------------------------------------------- parameters
def test_an_engine_added_before_configuring_gets_its_parameters(stand_ins: StandIns) -> None:
    with world(make_runtime=stand_ins) as made:
        assert set_parameter(made, "engines", ["cpu", "gpu_2"])[0]
        assert set_parameter(made, "engine.gpu_2.device", "rpc")[0]
        assert set_parameter(made, "engine.gpu_2.cpus", [0])[0]
        assert not set_parameter(made, "engine.gpu_2.cpus", [-3])[0]
        assert not set_parameter(made, "engines", ["Not A Name"])[0]
        assert made.node.change("configure")
        first, second = stand_ins.newest.config.engines
        assert (first.name, first.device) == ("cpu", "cpu")
        assert (second.name, second.device, second.cpus) == ("gpu_2", "rpc", (0,))
        assert not set_parameter(made, "engines", ["cpu"])[0], "configured"
        assert not set_parameter(made, "engine.gpu_2.cpus", [])[0], "configured"


@pytest.mark.parametrize(
    ("parameters", "part"),
    [
        ({"engine__cpu__device": "vulkan:first"}, "vulkan:first"),
        ({"engine__cpu__device": "rpc:192.0.2.7:50052"}, "allow_remote"),
        ({"table__ingest_engine": "gpu"}, "no engine 'gpu'"),
        ({"placement__retry_s": 100.0}, "max_retry_s"),
    ],
)
def test_engines_that_cannot_be_are_explained_when_configuring(
    stand_ins: StandIns, parameters: dict[str, Any], part: str
) -> None:
    with world(make_runtime=stand_ins, **parameters) as made:
        assert not made.node.change("configure")
        assert part in made.node.state().configure_error


def test_parameters_of_other_engines_and_of_former_times_are_told(stand_ins: StandIns) -> None:
    given = {
        "engine__n_threads": 3,
        "engine__name": "cpu",
        "engine__scond__device": "cpu",
        "engine__cpu__n_thread": 2,
    }
    with world(make_runtime=stand_ins, engines=["cpu", "second"], **given) as made:
        told = "\n".join(made.node.parameters.unused())
    assert "engine.cpu.n_threads and engine.second.n_threads" in told
    assert "engines are named in `engines`" in told
    assert "engine scond are not used: it is not one of the engines (cpu, second); " in told
    assert "did you mean second?" in told
    assert "engine.cpu.n_thread is ignored; did you mean engine.cpu.n_threads?" in told
    assert len(told.splitlines()) == 4


def configured_from(path: Path) -> tuple[list[str], RuntimeConfig]:
    """Complaints about a parameter file, and what it makes of the runtime."""
    context = Context()
    rclpy.init(context=context)
    node = EdgeVlmNode(context=context, cli_args=["--ros-args", "--params-file", str(path)])
    try:
        parameters = node.parameters
        streams = {name: parameters.stream_values(name) for name in parameters.stream_names()}
        engines = {name: parameters.engine_values(name) for name in parameters.engine_names()}
        config = runtime_config(parameters.node_values(), streams, engines)
        return [*parameters.problems.values(), *parameters.unused()], config
    finally:
        node.close()
        node.destroy_node()
        rclpy.shutdown(context=context)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_parameter_files_of_the_package_are_understood(path: Path) -> None:
    complaints, config = configured_from(path)
    assert complaints == []
    if path.stem == "two_engines":
        assert [engine.name for engine in config.engines] == ["cpu", "second"]
        assert [engine.device for engine in config.engines] == ["cpu", "rpc"]
        assert config.streams[0].ingest_engine == "cpu"


def test_an_empty_list_of_cores_in_a_file_means_all(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "/**: {ros__parameters: {engines: [a, b], engine: {a: {cpus: []}, b: {cpus: [0]}}}}\n"
    )
    complaints, config = configured_from(path)
    assert complaints == []
    assert [engine.cpus for engine in config.engines] == [(), (0,)]
