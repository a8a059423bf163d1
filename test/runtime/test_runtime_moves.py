"""A running answer goes on on another engine while it is being decoded."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    engine_of,
    eventually,
    hold_decoding,
)
from moves import (
    assert_ended,
    assert_nothing_is_kept,
    assert_stayed,
    assert_works,
    begin,
    end_now,
    half_moved,
    hold_import,
    leaving,
    move,
    mover,
    question_of,
    ready_on_both,
    rebalance,
    undisturbed,
)
from robot import (
    GREEDY,
    PENALISED,
    SAMPLED,
    assert_goes_on,
)
from two_engines import ask

from edge_vlm_ros.engines.errors import ComputeError
from edge_vlm_ros.engines.protocol import HandOffAnswer
from edge_vlm_ros.runtime import (
    FinishReason,
    Runtime,
    SamplingParameters,
)


# -------------------------------------------------------------------------------- the same answer
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED])
@pytest.mark.parametrize("n_steps", [0, 9])
def test_a_moved_answer_is_the_undisturbed_one(
    two: Runtime, sampling: SamplingParameters, n_steps: int
) -> None:
    greedy, expected = ask(two, max_tokens=32), undisturbed(two, sampling=sampling)
    ready_on_both(two)
    before = engine_of(two, "second").status().generated_tokens
    with hold_decoding(two, after_steps=n_steps) as gate:
        answer = begin(two, sampling=sampling)
        gate.wait_until_reached()
        question = move(two, answer)
        assert question.is_leaving
    result = assert_goes_on(answer, expected)
    metrics = result.metrics
    assert (metrics.prefill_engine, metrics.engine, metrics.path) == ("cpu", "second", "local")
    assert (metrics.failovers, metrics.imported_tokens, metrics.replayed_tokens) == (0, 0, 0)
    assert metrics.reused_tokens == result.context.tokens
    assert two.placement_status().handoffs == 1
    eventually(  # the counter is read after a step, its events come during it
        lambda: (
            engine_of(two, "second").status().generated_tokens - before
            == len(expected.token_ids) - (n_steps + 2)
        ),
        "it generates what was not generated yet",
    )
    assert_works(two, greedy)


def test_the_history_is_imported_while_the_answer_goes_on(two: Runtime) -> None:
    greedy, expected = ask(two, max_tokens=32), undisturbed(two, sampling=SAMPLED)
    with half_moved(two, sampling=SAMPLED) as (answer, gate):
        question = question_of(two, answer)
        assert question.running_on == "cpu"
        wanted = two._loaded().streams["table"].history._wanted
        assert wanted[question.version] == 1
        gate.open()
        eventually(lambda: question.is_leaving, "the history is there")
    result = assert_goes_on(answer, expected)
    metrics = result.metrics
    assert (metrics.prefill_engine, metrics.engine, metrics.path) == ("cpu", "second", "import")
    assert metrics.imported_tokens == metrics.reused_tokens == result.context.tokens
    assert metrics.moved_bytes > 0
    assert two.placement_status().handoffs == 1
    assert_works(two, greedy)


def test_several_move_one_after_the_other(two: Runtime) -> None:
    samplings = (GREEDY, SAMPLED, PENALISED)
    expected = [undisturbed(two, sampling=s) for s in samplings]
    ready_on_both(two)
    with hold_decoding(two, after_steps=8) as gate:
        answers = [begin(two, sampling=s) for s in samplings]
        gate.wait_until_reached()
        questions = [question_of(two, answer) for answer in answers]
        eventually(lambda: all(q.first_token for q in questions))
        move(two, answers[0])
        assert rebalance(two, cpu="second") == [], "one at a time"
        mover(two).targets = {"cpu": "second"}  # the next when the first has left
    for answer, undisturbed_answer in zip(answers, expected, strict=True):
        assert assert_goes_on(answer, undisturbed_answer).metrics.engine == "second"
    assert two.placement_status().handoffs == 3
    mover(two).targets = {}
    assert_works(two, ask(two, max_tokens=32))


def test_an_answer_moves_once(two: Runtime) -> None:
    expected = undisturbed(two)
    ready_on_both(two)
    mover(two).targets = {"cpu": "second", "second": "cpu"}
    with hold_decoding(two, "second", after_steps=3) as there:
        with hold_decoding(two, after_steps=0) as gate:
            answer = begin(two)
            gate.wait_until_reached()
            question = question_of(two, answer)
            eventually(lambda: question.is_leaving, "its first token makes it move")
        there.wait_until_reached()
        assert rebalance(two, cpu="second", second="cpu") == []
    assert assert_goes_on(answer, expected).metrics.engine == "second"
    assert two.placement_status().handoffs == 1


def test_the_end_of_an_answer_makes_another_one_move(two: Runtime) -> None:
    expected = undisturbed(two, sampling=SAMPLED)
    ready_on_both(two)
    with hold_decoding(two, after_steps=9):  # neither of them ends before it has moved
        with hold_decoding(two, after_steps=4) as gate:
            answer, short = begin(two, sampling=SAMPLED), begin(two, max_tokens=6)
            gate.wait_until_reached()
            questions = [question_of(two, a) for a in (answer, short)]
            eventually(lambda: all(q.first_token for q in questions))
            two._on_loop(lambda: setattr(questions[1], "was_moved", True))  # the other one is meant
            mover(two).targets = {"cpu": "second"}
        moves = questions[0]
        eventually(lambda: moves.is_leaving or moves.was_moved, "there is less to do now")
        assert short.result(PATIENCE_S).metrics.engine == "cpu"
    assert assert_goes_on(answer, expected).metrics.engine == "second"


# -------------------------------------------------------------------------------- who may not
@pytest.mark.parametrize(
    "options",
    [
        {"engine": "cpu"},
        {"engine": "cpu", "prefill_engine": "second"},
        {"path": "local"},
        {"path": "replay"},
    ],
)
def test_what_the_asker_has_chosen_is_kept(two: Runtime, options: dict[str, str]) -> None:
    expected = undisturbed(two)
    ready_on_both(two)
    with hold_decoding(two, after_steps=4) as gate:
        answer = begin(two, **options)
        gate.wait_until_reached()
        question = question_of(two, answer)
        eventually(lambda: question.first_token)
        assert rebalance(two, cpu="second") == [] and not question.moving_to
    assert assert_goes_on(answer, expected).metrics.engine == "cpu"
    assert two.placement_status().handoffs == ("prefill_engine" in options)
    assert_nothing_is_kept(two)


def test_what_an_engine_has_failed_on_is_left_alone(
    two: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(two)

    def refuse(*_: Any) -> None:
        raise ComputeError("out of luck")

    with monkeypatch.context() as broken, hold_decoding(two, "second", after_steps=4) as gate:
        broken.setattr(engine_of(two)._context, "decode_tokens", refuse)
        answer = begin(two)
        gate.wait_until_reached()
        assert rebalance(two, second="cpu") == []
    assert assert_goes_on(answer, expected).metrics.engine == "second"


def test_nothing_moves_while_a_question_waits_for_a_place(two: Runtime) -> None:
    """It is to have the place."""
    expected = undisturbed(two)
    stub = mover(two)
    with hold_decoding(two, after_steps=4) as gate:
        answer = begin(two)
        gate.wait_until_reached()
        eventually(lambda: question_of(two, answer).first_token)
        stub.plan = lambda *_: None  # type: ignore[attr-defined]
        waiting = begin(two, max_tokens=2)
        del stub.plan  # type: ignore[attr-defined]
        assert question_of(two, waiting).waits_for_place
        assert rebalance(two, cpu="second") == []
    assert_stayed(two, answer, expected)
    assert waiting.result(PATIENCE_S).token_ids == expected.token_ids[:2]


def test_an_answer_is_told_once_to_leave(two: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(two)
    engine, told = engine_of(two), []
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda command: (told.append(command), submit(command)))
    with leaving(two) as answer:
        two._on_loop(two._loaded().answering.advance)
    assert assert_goes_on(answer, expected).metrics.engine == "second"
    assert told.count(HandOffAnswer(answer.answer_id)) == 1


def test_what_is_being_ended_stays(two: Runtime) -> None:
    with hold_decoding(two, after_steps=4) as gate:
        answer = begin(two)
        gate.wait_until_reached()
        eventually(lambda: question_of(two, answer).first_token)
        end_now(two, answer, "cancel")
        assert rebalance(two, cpu="second") == []
    assert answer.result(PATIENCE_S).metrics.engine == "cpu"
    assert_nothing_is_kept(two)


def test_an_answer_about_a_history_that_no_engine_keeps_stays(two: Runtime) -> None:
    """To move it the engine that ingests the stream would compute all of it again."""
    expected = undisturbed(two)
    with hold_decoding(two, after_steps=4) as gate:
        answer = begin(two)
        gate.wait_until_reached()
        eventually(lambda: question_of(two, answer).first_token)
        two.reset("table")
        assert rebalance(two, cpu="second") == []
    assert assert_goes_on(answer, expected).metrics.engine == "cpu"
    assert_nothing_is_kept(two)


def test_a_policy_that_raises_leaves_all_where_it_is(
    two: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    expected = undisturbed(two)
    with hold_decoding(two, after_steps=4) as gate:
        answer = begin(two)
        gate.wait_until_reached()
        eventually(lambda: question_of(two, answer).first_token)
        stub = mover(two)
        stub.move = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        two._on_loop(two._loaded().answering._rebalance)
        del stub.move
    assert "which answer is to move" in caplog.text
    assert_stayed(two, answer, expected)


# -------------------------------------------------------------------------------- it ends first
def test_an_answer_may_end_before_the_history_is_there(two: Runtime) -> None:
    expected = undisturbed(two)
    with hold_import(two) as gate:
        with hold_decoding(two, after_steps=2) as first:
            answer = begin(two)
            first.wait_until_reached()
            question = move(two, answer)
        gate.wait_until_reached()
        eventually(lambda: not two.question_status().pending, "it has ended")
        assert question.moving_to == "second"
        history, table = two._loaded().streams["table"].history, two._loaded().trunks.table
        assert not history._wanted
        assert not [record for record in table if record.reserved], "its room is given back at once"
    assert_stayed(two, answer, expected)


def test_an_answer_may_end_with_the_step_before_it_leaves(two: Runtime) -> None:
    whole = begin(two, max_tokens=6).result(PATIENCE_S)
    with leaving(two, max_tokens=6) as answer:
        pass
    assert_stayed(two, answer, whole)


# -------------------------------------------------------------------------------- ended by others
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_an_answer_is_ended_while_the_history_is_on_its_way(two: Runtime, how: str) -> None:
    expected = undisturbed(two)
    with half_moved(two, deadline_s=PATIENCE_S) as (answer, _):
        reason = end_now(two, answer, how)
    assert_ended(answer, expected, reason)
    assert two.placement_status().handoffs == 0
    assert_works(two, expected)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_an_answer_is_ended_while_it_leaves(two: Runtime, how: str) -> None:
    expected = undisturbed(two)
    with leaving(two, deadline_s=PATIENCE_S) as answer:
        reason = end_now(two, answer, how)
    assert_ended(answer, expected, reason)
    assert_works(two, expected)


def test_an_answer_that_its_engine_neither_ends_nor_gives_up_in_time(two: Runtime) -> None:
    """It is ended without the engine; what that says later is not heard."""
    expected = undisturbed(two)
    with leaving(two, deadline_s=PATIENCE_S) as answer:
        end_now(two, answer, "deadline")
        answering, question = two._loaded().answering, question_of(two, answer)
        assert question.end_by is not None
        late = question.end_by + 0.001
        two._on_loop(lambda: answering.end_overdue(late))
        assert_ended(answer, expected, FinishReason.DEADLINE)
    assert_works(two, expected)


@pytest.mark.parametrize("phase", ["importing", "leaving"])
def test_closing_in_the_middle_of_a_move(two: Runtime, phase: str) -> None:
    expected = undisturbed(two)
    closing = threading.Thread(target=two.close)
    way = half_moved(two) if phase == "importing" else leaving(two)
    with way as begun:
        answer = begun[0] if isinstance(begun, tuple) else begun
        question = question_of(two, answer)
        closing.start()
        eventually(lambda: question.ending is not None, "everything is to end")
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert_ended(answer, expected, FinishReason.CANCELLED)
