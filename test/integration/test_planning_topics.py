"""Plans, the planning status, traces and the policy of a node, over real ROS 2."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from edge_vlm_ros.msg import Plan, PlanningStatus
from edge_vlm_ros.srv import Trace
from harness import TWO_ENGINES, World, heard, level_of, set_parameter, wait_for, world
from stand_in_runtime import StandInRuntime, StandIns
from status_samples import PLANNED

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.runtime.status import PredictionError
from edge_vlm_ros.runtime.trace_reading import read_trace

QUICK: dict[str, Any] = {"status_period": 0.1, "diagnostics__period": 0.1}


@pytest.fixture
def stand_ins() -> StandIns:
    return StandIns()


@pytest.fixture
def made(stand_ins: StandIns) -> Iterator[World]:
    """An unconfigured node with two engines that does not compute anything."""
    engines = {"engines": ["cpu", "second"], "engine__second__device": "rpc"}
    with world(make_runtime=stand_ins, **engines, **QUICK) as world_made:
        yield world_made


@pytest.fixture
def runtime(made: World, stand_ins: StandIns) -> StandInRuntime:
    """Of the node, which is active."""
    assert made.node.change("configure") and made.node.change("activate")
    return stand_ins.newest


def listen_to_plans(made: World) -> list[Plan]:
    plans = heard(made, Plan, "/edge_vlm/plans")
    wait_for(lambda: made.node.outputs.plans.get_subscription_count(), "the subscription")
    return plans


# ------------------------------------------------------------------------- topics
def test_plans_are_published_in_order_when_made_and_when_carried_out(
    made: World, runtime: StandInRuntime
) -> None:
    plans = listen_to_plans(made)
    runtime.listener.plan_made(PLANNED)
    runtime.listener.plan_made(replace(PLANNED, answer_id=8))
    runtime.listener.plan_finished(
        replace(PLANNED, actual_first_token_s=1.0, actual_finished_s=2.0, finish_reason="stop")
    )
    wait_for(lambda: len(plans) == 3, "the plans")
    told = [(plan.answer_id, plan.phase) for plan in plans]
    assert told == [(7, "planned"), (8, "planned"), (7, "finished")]
    assert plans[0].alternatives[plans[0].chosen].prefill_engine == "second"
    assert plans[2].finished_error_s == -1.0
    assert plans[0].header.stamp.sec > 0


def test_plans_are_left_out_while_they_are_not_wanted(made: World, runtime: StandInRuntime) -> None:
    plans = listen_to_plans(made)
    assert set_parameter(made, "planning.publish_plans", False) == (True, "")
    runtime.listener.plan_made(PLANNED)
    assert set_parameter(made, "planning.publish_plans", True) == (True, "")
    runtime.listener.plan_made(replace(PLANNED, answer_id=8))
    wait_for(lambda: plans, "the second plan")
    assert [plan.answer_id for plan in plans] == [8]


def test_the_planning_is_published_and_bad_predictions_are_warned_of(
    made: World, runtime: StandInRuntime
) -> None:
    statuses = heard(made, PlanningStatus, "/edge_vlm/planning")
    diagnostics = heard(made, DiagnosticArray, "/diagnostics")
    newest = wait_for(lambda: statuses and statuses[-1], "the planning")
    assert list(newest.engines) == ["cpu", "second"] and newest.decisions == 40
    told = (0, "sdep, 40 decisions")
    wait_for(lambda: level_of(diagnostics, "edge_vlm: planning") == told, "the report")
    runtime.planning = replace(runtime.planning, finished=PredictionError(50, 4.0))
    told = (1, "predictions are off: end by a factor of 5.0 (median)")
    wait_for(lambda: level_of(diagnostics, "edge_vlm: planning") == told, "the warning")


# ------------------------------------------------------------------------- policy
def test_policy_and_objective_change_on_a_running_node(
    made: World, runtime: StandInRuntime
) -> None:
    assert runtime.policy == ("sdep", "completion")
    assert set_parameter(made, "planning.policy", "batched:second") == (True, "")
    assert runtime.policy == ("batched:second", "completion")
    assert set_parameter(made, "planning.objective", "first_token") == (True, "")
    assert runtime.policy == ("batched:second", "first_token")
    done, reason = set_parameter(made, "planning.policy", "single:third")
    assert not done and "planning.policy: " in reason and "third" in reason
    assert not set_parameter(made, "planning.objective", "speed")[0]
    assert not set_parameter(made, "planning.calibration", "never")[0], "configured"
    assert runtime.policy == ("batched:second", "first_token")


def test_a_policy_that_is_none_is_explained_when_configuring(
    made: World, stand_ins: StandIns
) -> None:
    assert set_parameter(made, "planning.policy", "fastest") == (True, "")
    assert not made.node.change("configure")
    assert "planning.policy: " in made.node.state().configure_error
    assert "fastest" in made.node.state().configure_error
    assert stand_ins.newest is None, "before anything is loaded"
    assert set_parameter(made, "planning.policy", "isolated") == (True, "")
    assert made.node.change("configure")
    assert stand_ins.newest.policy == ("isolated", "completion")


def test_a_policy_that_is_changed_while_models_load_is_followed(
    made: World, stand_ins: StandIns
) -> None:
    stand_ins.held = True
    configuring = threading.Thread(target=made.node.change, args=("configure",))
    configuring.start()
    try:
        wait_for(lambda: stand_ins.newest and stand_ins.newest.loading.is_set(), "loading")
        assert set_parameter(made, "planning.policy", "round_robin") == (True, "")
    finally:
        stand_ins.newest.go_on.set()
        configuring.join()
    assert stand_ins.newest.policy == ("round_robin", "completion")


def test_a_policy_that_the_runtime_refuses_is_logged(
    made: World,
    runtime: StandInRuntime,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(policy: str, objective: str) -> None:
        raise RuntimeError("not now")

    monkeypatch.setattr(runtime, "set_policy", fail)
    set_parameter(made, "planning.policy", "isolated")
    assert "the policy is not isolated: not now" in capfd.readouterr().err


# ------------------------------------------------------------------------- traces
def test_a_trace_is_begun_and_ended_by_service(
    made: World, runtime: StandInRuntime, tmp_path: Path
) -> None:
    path = str(tmp_path / "trace.json")
    begun = made.client.call(Trace, "trace", path=path)
    assert begun.success and path in begun.message and runtime.tracing == path
    twice = made.client.call(Trace, "trace", path=path)
    assert not twice.success and path in twice.message
    ended = made.client.call(Trace, "trace")
    assert ended.success and ended.events == 17 and runtime.tracing == ""
    assert not made.client.call(Trace, "trace").success


def test_everything_of_a_real_question_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    folder = str(tmp_path)
    with world(
        **{**TWO_ENGINES, "planning__calibration": "auto"}, planning__calibration_folder=folder
    ) as made:
        made.start()
        plans = listen_to_plans(made)
        statuses = heard(made, PlanningStatus, "/edge_vlm/planning")
        relative = made.client.call(Trace, "trace", path="trace.json")
        assert not relative.success and "absolute" in relative.message
        assert made.client.call(Trace, "trace", path=str(path)).success
        made.frames("table", 2)
        ended, result = made.client.ask(stream="table").wait_end()
        assert ended == "succeeded", result.error
        wait_for(lambda: plans and plans[-1].phase == "finished", "all messages of the plan")
        *earlier, planned, finished = plans  # planned again if the history took its time
        assert {plan.phase for plan in (*earlier, planned)} == {"planned"}
        assert planned.answer_id == finished.answer_id == result.answer_id
        chosen = planned.alternatives[planned.chosen]
        assert not chosen.blocked
        assert (chosen.prefill_engine, chosen.decode_engine) == (
            result.metrics.prefill_engine,
            result.metrics.engine,
        )
        assert 0 <= planned.decided_s < planned.predicted_first_token_s
        assert planned.predicted_first_token_s <= planned.predicted_finished_s
        assert finished.actual_first_token_s == pytest.approx(result.metrics.ttft_ms / 1e3)
        assert finished.actual_finished_s == pytest.approx(result.metrics.total_ms / 1e3, abs=0.05)
        newest = wait_for(
            lambda: next((s for s in statuses if s.decisions and s.finished_predictions), None),
            "the decision to be counted",
        )
        assert (newest.policy, list(newest.engines)) == ("sdep", ["cpu", "second"])
        assert sum(newest.routed) == pytest.approx(1.0)
        stopped = made.client.call(Trace, "trace")
        assert stopped.success and stopped.events > 0
        assert not made.client.call(Trace, "trace").success, "it has stopped"
    trace = read_trace(path)
    activities = {step.activity for steps in trace.timelines.values() for step in steps}
    assert {Activity.ENCODE, Activity.INGEST, Activity.PREFILL, Activity.DECODE} <= activities
    assert chosen.decode_engine in trace.timelines
    (question,) = trace.questions
    assert (question.answer_id, question.stream) == (result.answer_id, "table")
    assert question.finish_reason == result.finish_reason
    assert question.first_token is not None
    ttft_s = question.first_token - question.arrived
    assert ttft_s == pytest.approx(result.metrics.ttft_ms / 1e3, abs=1e-3)
