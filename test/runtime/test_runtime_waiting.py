"""A question that waits for state is not forgotten, and questions never wait for one another."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    all_encoded,
    changes,
    clip,
    engine_of,
    eventually,
    held,
    hold_decoding,
    hold_encoder,
    settle,
    show,
)

from edge_vlm_ros.runtime import (
    Answer,
    AskOptions,
    EngineConfig,
    HistoryConfig,
    PlacementConfig,
    QuestionLimits,
    Runtime,
)
from edge_vlm_ros.runtime.answering import MAX_REPLANNED

NO_SNAPSHOTS = PlacementConfig(snapshot_entries=0)
QUESTION = "Describe the scene."


@pytest.mark.parametrize("how", ["evict", "move"])
def test_what_a_question_waits_for_on_another_engine_is_given_up(start: Start, how: str) -> None:
    """No frame comes that would bring things on: whoever gave it up must see to the question."""
    names = ("cpu", "second", "third")
    engines = tuple(EngineConfig(name=name, n_threads=1) for name in names)
    runtime = start(engines=engines, placement=NO_SNAPSHOTS)
    frames = changes(1)[0].clip.frames(4)
    show(runtime, "table", frames[:3])
    settle(runtime)
    with held(engine_of(runtime)._context, "decode_embeddings") as gate:
        show(runtime, "table", frames[3:], 3)
        answer = runtime.ask("table", QUESTION, AskOptions(engine="second", path="import"))
        gate.wait_until_reached()
        if how == "evict":
            assert runtime.evict("table", "cpu") == 1
        else:
            runtime.move_ingestion("table", "third")
    result = answer.result(PATIENCE_S)
    assert (result.metrics.engine, result.error) == ("second", "")
    assert result.context.frames == 4
    settle(runtime)


def test_handoffs_in_opposite_directions_do_not_wait_for_each_other(start: Start) -> None:
    """Each engine has room for one history. The older question cannot have its first engine while
    the younger keeps it for later, and the younger not its first while the older does the same."""
    history = HistoryConfig(max_frames=6, keep_frames=3, max_turns=0, max_tokens=3 + 6 * 52)
    limits = QuestionLimits(max_question_tokens=24, default_max_tokens=16, max_answer_tokens=16)
    engines = tuple(EngineConfig(name=name, n_threads=1, n_ctx=512) for name in ("cpu", "second"))
    runtime = start(
        "table",
        "shelf",
        engines=engines,
        history=history,
        questions=limits,
        placement=NO_SNAPSHOTS,
    )
    runtime.move_ingestion("shelf", "second")
    for stream, seed in (("table", 3), ("shelf", 4)):
        show(runtime, stream, clip(seed).frames(5))
    settle(runtime)
    with ExitStack() as holds:
        computing = holds.enter_context(
            held(engine_of(runtime, "second")._context, "decode_embeddings")
        )
        first = runtime.ask("table", QUESTION, AskOptions(engine="second", path="replay"))
        computing.wait_until_reached()
        with hold_encoder(runtime) as encoding:
            show(runtime, "table", clip(3).frames(6)[5:], 5)
            encoding.wait_until_reached()
            there = AskOptions(prefill_engine="cpu", engine="second")
            back = AskOptions(prefill_engine="second", engine="cpu")
            older = runtime.ask("table", QUESTION, there)
            younger = runtime.ask("shelf", QUESTION, back)
        eventually(lambda: all_encoded(runtime, "table"))
        runtime.stream_status("table")  # the older question has been looked at
    for answer in (first, older, younger):
        result = answer.result(PATIENCE_S)
        assert result.error == "" and result.token_ids


class _Hesitant:
    """A policy that finds places for so many questions only; counts how often it is asked."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.places = math.inf
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def plan(self, state: Any, question: Any, costs: Any) -> Any:
        self.asked.append(question.stream)
        self.places -= 1
        return self._policy.plan(state, question, costs) if self.places >= 0 else None


def test_who_waits_for_a_place_is_planned_again_when_an_answer_ends(two: Runtime) -> None:
    """The oldest first, and no more than a few in vain: planning all would take too long."""
    planner = two._loaded().planner
    policy = planner.policy = _Hesitant(planner.policy)
    with hold_decoding(two) as gate:
        running = [two.ask("table", QUESTION, AskOptions(engine="cpu")) for _ in range(2)]
        gate.wait_until_reached()
        policy.places = 0
        waiting = [two.ask("table", QUESTION) for _ in range(5)]
        questions = two._loaded().answering.questions
        eventually(lambda: sum(q.waits_for_place for q in questions.values()) == 5)
        policy.asked.clear()
        running[0].cancel()
        gate.open()
        running[0].result(PATIENCE_S)
        running[1].result(PATIENCE_S)
    two.stream_status("table")  # what follows the end of the second has been done
    assert len(policy.asked) == 2 * MAX_REPLANNED
    assert all(q.waits_for_place for q in questions.values())
    _let_go_on(two, policy, waiting)


def test_one_place_is_given_once(two: Runtime) -> None:
    """Those behind the one that has taken it are not planned for nothing."""
    planner, there = two._loaded().planner, AskOptions(engine="cpu")
    policy = planner.policy = _Hesitant(planner.policy)
    with hold_decoding(two) as gate:
        running = two.ask("table", QUESTION, there)
        gate.wait_until_reached()
        policy.places = 0
        waiting = [two.ask("table", QUESTION, there) for _ in range(5)]
        questions = two._loaded().answering.questions
        eventually(lambda: sum(q.waits_for_place for q in questions.values()) == 5)
        policy.asked.clear()
        policy.places = 1
        gate.open()
        running.result(PATIENCE_S)
        waiting[0].result(PATIENCE_S)
    two.stream_status("table")  # what follows the end of the second has been done
    assert len(policy.asked) == 1 + MAX_REPLANNED
    _let_go_on(two, policy, waiting)


def _let_go_on(runtime: Runtime, policy: _Hesitant, waiting: list[Answer]) -> None:
    policy.places = math.inf
    runtime.ask("table", QUESTION, AskOptions(engine="second")).result(PATIENCE_S)
    assert not any(answer.result(PATIENCE_S).error for answer in waiting)
