"""A question that had to wait for its history is planned again when it is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    all_encoded,
    clip,
    eventually,
    settle,
    show,
)
from takeovers import (
    FRAME,
    N_FRAMES,
    OPENING,
    ask_table,
    assert_right,
    half_read,
    hold_frame,
)
from two_engines import ask

from edge_vlm_ros.runtime import Runtime, placing
from tools.reference_loop import ReferenceLoop


def test_a_question_that_had_to_wait_is_planned_again_once(
    behind: Runtime, reference: ReferenceLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "FRESH_S", 0.0)
    policy = behind._loaded().planner.policy
    plan, seen = policy.plan, []

    def plan_and_note(state: Any, question: Any, costs: Any) -> Any:
        seen.append(question)
        return plan(state, question, costs)

    policy.plan = plan_and_note
    with half_read(behind, done=1) as (answers, gate):
        assert len(seen) == 2
    assert_right(behind, answers, reference)
    assert len(seen) == 4
    assert [question.of("second").computed for question in seen[2:]] == [OPENING + 6 * FRAME] * 2


def test_a_path_that_was_asked_for_is_kept(
    behind: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "FRESH_S", 0.0)
    with hold_frame(behind, "second", after=1) as gate:
        show(behind, "table", clip(1).frames(N_FRAMES))
        eventually(lambda: all_encoded(behind, "table"))
        decisions = behind.planning_status().decisions
        answers = ask_table(behind, 1, path="local")
        gate.wait_until_reached()
    assert not answers[0].result(PATIENCE_S).error
    assert behind.planning_status().decisions == decisions + 1


def test_a_plan_that_was_just_made_is_not_made_again(behind: Runtime) -> None:
    show(behind, "table", clip(1).frames(N_FRAMES))
    settle(behind)
    decisions = behind.planning_status().decisions
    ask(behind)
    assert behind.planning_status().decisions == decisions + 1


@pytest.mark.parametrize("outcome", ["elsewhere", "nowhere", "broken"])
def test_what_is_planned_again_goes_where_it_is_best_then(
    behind: Runtime, reference: ReferenceLoop, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """Without a place, or a plan, it goes where it was to go."""
    monkeypatch.setattr(placing, "FRESH_S", 0.0)
    policy = behind._loaded().planner.policy
    plan = policy.plan
    seen: list[Any] = []

    def second_time(state: Any, question: Any, costs: Any) -> Any:
        seen.append(question)
        if len(seen) == 1:
            return plan(state, replace(question, engine="second"), costs)
        if outcome == "broken":
            raise ZeroDivisionError
        if outcome == "nowhere":
            return None
        return plan(state, replace(question, engine="cpu", prefill_engine="cpu"), costs)

    policy.plan = second_time
    with half_read(behind, done=1, questions=1) as (answers, _):
        assert len(seen) == 1
    result = assert_right(behind, answers, reference)
    assert len(seen) == 2
    assert result.metrics.engine == ("cpu" if outcome == "elsewhere" else "second")
