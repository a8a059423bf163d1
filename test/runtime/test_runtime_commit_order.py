"""Answers that enter their history in the order of the questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from helpers import (
    PATIENCE_S,
    Gate,
    Start,
    clip,
    engine_of,
    eventually,
    hold_decoding,
    settle,
    show,
)
from two_engines import QUESTION, TWO, ask

from edge_vlm_ros.runtime import (
    Answer,
    AskOptions,
    FinishReason,
    QuestionLimits,
    Runtime,
)

# The engine that is held cannot export meanwhile.
ELSEWHERE = AskOptions(engine="second", path="replay")


@contextmanager
def two_to_commit(start: Start) -> Iterator[tuple[Runtime, Gate, Answer, Answer]]:
    """Two questions to be committed in order of arrival, of which the second is done first."""
    runtime = start("table", engines=TWO, questions=QuestionLimits(commit_order="arrival"))
    show(runtime, "table", clip(1).frames(3))
    settle(runtime)
    with hold_decoding(runtime) as gate:
        first = runtime.ask("table", QUESTION, AskOptions(commit=True))
        gate.wait_until_reached()
        second = runtime.ask("table", "Is there a dog?", replace(ELSEWHERE, commit=True))
        yield runtime, gate, first, second


def test_answers_are_committed_in_the_order_of_the_questions(start: Start) -> None:
    with two_to_commit(start) as (runtime, gate, first, second):
        plain = runtime.ask("table", "Is there a dog?", ELSEWHERE)
        assert plain.result(PATIENCE_S).finish_reason is FinishReason.STOP
        eventually(lambda: engine_of(runtime, "second").status().running_answers == 0)
        with pytest.raises(TimeoutError):
            second.result(0.2)
        assert runtime.stream_status("table").turns == 0
        gate.open()
        assert first.result(PATIENCE_S).committed and second.result(PATIENCE_S).committed
    turns = [line for line in runtime.describe("table") if "turn" in line]
    assert QUESTION in turns[0] and "dog" in turns[1] and len(turns) == 2
    settle(runtime)
    assert ask(runtime).context.turns == 2


def test_a_cancelled_answer_does_not_hold_up_the_next(start: Start) -> None:
    with two_to_commit(start) as (runtime, gate, first, second):
        first.cancel()
        gate.open()
        assert second.result(PATIENCE_S).committed
    assert not first.result(PATIENCE_S).committed
    assert runtime.stream_status("table").turns == 1
