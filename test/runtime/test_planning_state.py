"""What a planner is told of a runtime with questions in different states."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    all_encoded,
    changes,
    engine_of,
    eventually,
    held,
    hold_decoding,
    hold_encoder,
    settle,
    show,
)
from moves import move, question_of
from robot import is_prefill
from two_engines import QUESTION, ask

from edge_vlm_ros.planning.state import PlanningState
from edge_vlm_ros.runtime import AskOptions, Runtime
from edge_vlm_ros.runtime.question import Question


def read(runtime: Runtime, *planned: Question) -> PlanningState:
    reader: Any = runtime._loaded().planner._reader
    result: PlanningState = runtime._on_loop(lambda: reader.state(("cpu", "second"), 0.0, planned))
    return result


def test_questions_whose_frames_are_being_encoded_are_told(two: Runtime) -> None:
    """With the engine that ingests their stream, and not the one that is planned."""
    change = changes(1)[0]
    two.reset("table")
    two.move_ingestion("table", "second")
    show(two, "table", change.clip.frames(change.stop))
    show(two, "shelf", change.clip.frames(1))
    settle(two)
    with hold_encoder(two) as gate:
        show(two, "table", change.clip.frames(change.stop + 1)[-1:], change.stop)
        answers = [two.ask("table", change.text, AskOptions(max_tokens=n)) for n in (20, 30)]
        ready = two.ask("shelf", QUESTION, AskOptions(max_tokens=2))  # needs no frame
        gate.wait_until_reached()
        assert not ready.result(PATIENCE_S).error
        first, second = (question_of(two, answer) for answer in answers)
        tokens = two.stream_status("table").tokens
        told = read(two).unplaced
        assert [(u.engine, u.load.prompt_tokens, u.frames) for u in told] == [
            ("second", len(first.prompt), 1),
            ("second", len(second.prompt), 1),
        ]
        assert [u.load.history_tokens for u in told] == [tokens, tokens]
        assert read(two, first).unplaced == told[1:]
        assert not any(engine.answers for engine in read(two).engines)
        gate.open()
        eventually(lambda: all_encoded(two, "table"))
        assert read(two).unplaced == ()
    for answer in answers:
        assert change.after.startswith(answer.result(PATIENCE_S).text)


@pytest.mark.parametrize(
    ("options", "usable", "told"),
    [
        (AskOptions(), ("cpu", "second"), ("", "")),
        (AskOptions(engine="second"), ("cpu", "second"), ("second", "second")),
        (AskOptions(engine="second", prefill_engine="cpu"), ("cpu", "second"), ("cpu", "second")),
        (AskOptions(engine="second"), ("cpu",), ("", "")),
        (AskOptions(engine="second", prefill_engine="cpu"), ("second",), ("", "second")),
    ],
)
def test_an_engine_that_is_asked_for_alone_computes_the_question_too(
    two: Runtime, options: AskOptions, usable: tuple[str, ...], told: tuple[str, str]
) -> None:
    with hold_decoding(two), held(engine_of(two, "second")._context, "decode_tokens"):
        answer = two.ask("table", QUESTION, options)
        question, coordinator = question_of(two, answer), two._loaded()
        epoch = coordinator.streams["table"].history.epoch(question.version.epoch)
        reader: Any = coordinator.planner._reader
        state = two._on_loop(lambda: reader.question(question, epoch, usable))
        assert (state.prefill_engine, state.engine) == told
    assert not answer.result(PATIENCE_S).error


def test_what_a_moved_answer_prefills_again_is_told(two: Runtime) -> None:
    ask(two, engine="second")
    with held(engine_of(two, "second")._context, "decode_tokens", is_prefill) as gate:
        with hold_decoding(two, after_steps=4) as first:
            answer = two.ask("table", QUESTION, AskOptions(max_tokens=32))
            first.wait_until_reached()
            question = move(two, answer)
            here, there = read(two).engines
            assert ([load.prompt_tokens for load in here.answers], there.answers) == ([0], ())
        gate.wait_until_reached()
        here, there = read(two).engines
        own = len(question.prompt) + len(question.token_ids) - 1
        assert (here.answers, [load.prompt_tokens for load in there.answers]) == ((), [own])
    assert not answer.result(PATIENCE_S).error
