"""The node's life over real ROS 2: transitions, parameters, status, diagnostics, time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from edge_vlm_ros.msg import EngineStatus, StreamStatus
from harness import World, heard, level_of, picture, set_parameter, wait_for, world
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock

from edge_vlm_ros.runtime import Runtime


def state_of(made: World) -> str:
    return str(made.client.call(GetState, "get_state").current_state.label)


def transition(made: World, **wanted: Any) -> bool:
    return bool(
        made.client.call(ChangeState, "change_state", transition=Transition(**wanted)).success
    )


# ------------------------------------------------------------------------- transitions
def test_a_whole_life_twice_over_the_services() -> None:
    with world() as made:
        for _ in range(2):
            assert state_of(made) == "unconfigured"
            assert transition(made, id=Transition.TRANSITION_CONFIGURE)
            assert transition(made, id=Transition.TRANSITION_ACTIVATE)
            assert state_of(made) == "active"
            made.wait_connected()
            made.frames("table", 1)
            assert made.client.ask().wait_end()[0] == "succeeded"
            assert transition(made, id=Transition.TRANSITION_DEACTIVATE)
            assert transition(made, id=Transition.TRANSITION_CLEANUP)
            assert made.node.runtime is None


def test_an_impossible_transition_fails_and_the_node_lives() -> None:
    with world() as made:
        assert not transition(made, id=Transition.TRANSITION_ACTIVATE)
        assert not transition(made, label="no_such_transition")
        assert not made.node.change("deactivate")
        assert state_of(made) == "unconfigured"


def test_a_failed_configure_says_why_and_can_be_mended() -> None:
    with world(model_profile="no_such_profile", diagnostics__period=0.1) as made:
        diagnostics = heard(made, DiagnosticArray, "/diagnostics")
        assert not made.node.change("configure")
        assert state_of(made) == "unconfigured"
        level, text = wait_for(
            lambda: (found := level_of(diagnostics, "edge_vlm: node")) and found[0] and found,
            "diagnostics to tell",
        )
        assert level == 2 and "no_such_profile" in text
        assert set_parameter(made, "model_profile", "demo") == (True, "")
        made.start()
        wait_for(lambda: level_of(diagnostics, "edge_vlm: node") == (0, "active"), "good news")


def test_contradicting_settings_are_explained() -> None:
    with world(table__max_tokens=10) as made:
        assert not made.node.change("configure")
        assert "max_tokens" in made.node.state().configure_error


def test_a_wrong_topic_is_told_before_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "load", lambda *_: pytest.fail("loaded"))
    with world({"table": "/table/image_raw", "shelf": "/s"}, shelf__image_topic="no topic") as made:
        assert not made.node.change("configure")
        assert "no topic" in made.node.state().configure_error
        assert not made.node.cameras
        topics = [subscription.topic_name for subscription in made.node.subscriptions]
        assert "/table/image_raw" not in topics


def test_state_and_status_can_be_read_while_models_load(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, loading = threading.Event(), threading.Event()
    load = Runtime.load

    def slow_load(self: Runtime, progress: Any = None) -> None:
        progress("language model", 0.4)
        loading.set()
        assert go_on.wait(30.0)
        load(self, progress)

    monkeypatch.setattr(Runtime, "load", slow_load)
    with world(status_period=0.1, diagnostics__period=0.1) as made:
        engines = heard(made, EngineStatus, "/edge_vlm/engines/cpu/status")
        diagnostics = heard(made, DiagnosticArray, "/diagnostics")
        configuring = threading.Thread(target=made.node.change, args=("configure",))
        configuring.start()
        try:
            assert loading.wait(30.0)
            assert state_of(made) == "configuring"
            assert not made.node.change("activate"), "another transition is running"
            wait_for(lambda: engines and engines[-1].state == "starting", "state starting")
            found = wait_for(lambda: level_of(diagnostics, "edge_vlm: engine cpu"), "diagnostics")
            assert found == (0, "loading: language model 40 %")
        finally:
            go_on.set()
            configuring.join()
        wait_for(lambda: engines[-1].state == "ready", "state ready")


# ------------------------------------------------------------------------- parameters
def test_changes_are_refused_with_a_reason_and_allowed_at_their_time() -> None:
    with world() as made:
        assert set_parameter(made, "questions.max_pending", 3) == (True, "")
        made.start()
        done, reason = set_parameter(made, "table.max_fps", 5.0)
        assert not done and "clean up the node first" in reason
        assert set_parameter(made, "silent_camera_timeout", 9.0) == (True, "")
        assert not set_parameter(made, "result_timeout", 9.0)[0], "read-only"
        assert not set_parameter(made, "silent_camera_timeout", -1.0)[0], "out of range"
        both = made.node.set_parameters_atomically(
            [
                Parameter("silent_camera_timeout", value=5.0),
                Parameter("engine.cpu.kv_type", value="q3"),
            ]
        )
        assert not both.successful and "q8_0" in both.reason
        assert made.node.get_parameter("silent_camera_timeout").value == 9.0, "all or nothing"
        assert made.node.change("deactivate") and made.node.change("cleanup")
        assert set_parameter(made, "table.max_fps", 5.0) == (True, "")


def test_values_given_at_start_that_cannot_be_used_stop_configuring_until_mended() -> None:
    with world(
        table__transport="pigeon", questions__max_pending=1000, engine__cpu__exact=7
    ) as made:
        assert set(made.node.parameters.problems) == {
            "table.transport",
            "questions.max_pending",
            "engine.cpu.exact",
        }
        assert not made.node.change("configure")
        assert "pigeon" in made.node.state().configure_error
        assert set_parameter(made, "table.transport", "raw")[0]
        assert set_parameter(made, "questions.max_pending", 4)[0]
        assert not made.node.change("configure")
        assert set_parameter(made, "engine.cpu.exact", True)[0]
        assert made.node.change("configure")


def test_an_empty_list_where_one_is_needed_is_named() -> None:
    with world(engines=None) as made:  # how `engines: []` arrives
        assert made.node.parameters.problems == {"engines": "engines is empty: give it a value."}
        assert not made.node.change("configure")
        assert "engines is empty" in made.node.state().configure_error
        assert set_parameter(made, "engines", ["cpu"])[0]
        assert made.node.change("configure")


def test_an_integer_serves_where_a_real_number_is_meant_and_unknown_names_are_told() -> None:
    with world(table__max_fps=5, table__max_pfs=4.0, shelf__max_fps=1.0) as made:
        assert made.node.get_parameter("table.max_fps").value == 5.0
        unknown, other_stream = made.node.parameters.unused()
        assert "table.max_pfs" in unknown and "did you mean table.max_fps" in unknown
        assert "README.md lists all parameters" in unknown
        assert "shelf" in other_stream and "not one of the streams (table)" in other_stream


def test_a_stream_added_before_configuring_gets_its_parameters() -> None:
    with world() as made:
        assert set_parameter(made, "streams", ["table", "shelf"])[0]
        assert set_parameter(made, "shelf.image_topic", "/shelf/image_raw")[0]
        assert not set_parameter(made, "streams", ["Not A Name"])[0]
        assert made.node.change("configure")
        assert [camera.topic for camera in made.node.cameras] == [
            "/table/image_raw",
            "/shelf/image_raw",
        ]


# ------------------------------------------------------------------------- watching
def test_status_topics_and_diagnostics_tell_the_state() -> None:
    with world(status_period=0.1, diagnostics__period=0.1, hardware_id="robot 7") as made:
        streams = heard(made, StreamStatus, "/edge_vlm/streams/table/status")
        diagnostics = heard(made, DiagnosticArray, "/diagnostics")
        made.start()
        made.frames("table", 3)
        wait_for(lambda: streams and streams[-1].frames == 3, "the stream's status")
        names = {
            "edge_vlm: node",
            "edge_vlm: stream table",
            "edge_vlm: engine cpu",
            "edge_vlm: placement",
            "edge_vlm: planning",
            "edge_vlm: encoder",
            "edge_vlm: caches",
        }
        complete = wait_for(
            lambda: [a for a in diagnostics if {s.name for s in a.status} == names],
            "all components",
        )
        assert {status.hardware_id for status in complete[-1].status} == {"robot 7"}
        for name in names:
            found = level_of(diagnostics, name)
            assert found is not None and found[0] == 0, (name, found)


def test_diagnostics_warn_of_a_camera_that_is_not_there() -> None:
    with world(diagnostics__period=0.1, silent_camera_timeout=0.2) as made:
        made.client.destroy_publisher(made.client.cameras.pop("table"))
        diagnostics = heard(made, DiagnosticArray, "/diagnostics")
        made.start()
        wait_for(
            lambda: (
                level_of(diagnostics, "edge_vlm: stream table")
                == (1, "no frame yet: nothing publishes /table/image_raw")
            ),
            "the warning",
        )


def test_a_backward_jump_of_simulated_time_starts_new_histories() -> None:
    with world(use_sim_time=True) as made:
        clock = made.client.create_publisher(Clock, "/clock", 10)
        made.start()
        now = made.node.get_clock().now

        def set_time(seconds: int) -> None:
            message = Clock()
            message.clock.sec = seconds
            wait_for(
                lambda: (clock.publish(message), now().nanoseconds == seconds * 10**9)[1],
                "simulated time",
            )

        set_time(100)
        made.frames("table", 2)
        set_time(110)
        runtime = made.node.runtime
        assert runtime is not None
        before = runtime.stream_status("table")
        assert before.frames == 2
        set_time(50)
        after = wait_for(
            lambda: (s := runtime.stream_status("table")).frames == 0 and s, "a new history"
        )
        assert after.registered.epoch > before.registered.epoch
        made.client.publish("table", picture(9), stamp_ns=51 * 10**9)
        wait_for(lambda: runtime.stream_status("table").frames == 1, "a frame in it")


# ------------------------------------------------------------------------- the process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_process_starts_by_itself_and_ends_with_zero(number: signal.Signals) -> None:
    code = "import sys; from edge_vlm_ros.cli.edge_vlm import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=os.environ.copy()
    )
    assert process.stderr is not None
    lines = []
    hangs = threading.Timer(120.0, process.kill)
    hangs.start()
    try:
        for line in process.stderr:
            lines.append(line)
            if "active: watching" in line:
                process.send_signal(number)
        assert process.wait(30.0) == 0, lines
    finally:
        hangs.cancel()
        process.kill()
    assert not [line for line in lines if "Traceback" in line or "ERROR" in line]
