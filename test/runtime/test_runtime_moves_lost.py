"""Engines are lost while a running answer moves from one to the other."""

from __future__ import annotations

import random
import threading
import time

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    changes,
    engine_of,
    eventually,
    hold_decoding,
    settle,
    show,
)
from moves import (
    assert_nothing_is_kept,
    assert_works,
    back_again,
    begin,
    half_moved,
    leaving,
    lose,
    move,
    mover,
    question_of,
    rebalance,
    two_that_come_back,
    undisturbed,
)
from robot import (
    AT_ONCE,
    CPU,
    FAR,
    GREEDY,
    N_FRAMES,
    PENALISED,
    SAMPLED,
    Heard,
    Robot,
    assert_goes_on,
    raising,
)

from edge_vlm_ros.runtime import (
    Answer,
    QuestionRejected,
    Runtime,
    SamplingParameters,
)


@pytest.fixture
def robot(start: Start) -> Robot:
    return two_that_come_back(start)


# -------------------------------------------------------------------------------- the other engine
@pytest.mark.parametrize("sampling", [GREEDY, PENALISED])
def test_the_other_engine_is_lost_before_it_holds_the_history(
    robot: Robot, sampling: SamplingParameters
) -> None:
    runtime = robot.runtime
    greedy, expected = undisturbed(runtime), undisturbed(runtime, sampling=sampling)
    context = engine_of(runtime, "second")._context
    with hold_decoding(runtime, after_steps=6) as middle:
        with hold_decoding(runtime, after_steps=2) as first:
            answer = begin(runtime, sampling=sampling)
            first.wait_until_reached()
            context.import_range = lambda *_: 1 / 0  # the engine's thread ends
            question = move(runtime, answer)
        middle.wait_until_reached()
        eventually(lambda: robot.heard.failed, "the other engine is lost")
        eventually(lambda: not question.moving_to, "it stays")
        runtime.stream_status("table")  # all that belongs to it has been done
        assert not question.wants_kv and not question.is_leaving
        assert not runtime._loaded().streams["table"].history._wanted
        assert question.may_move, "it was not its fault"
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 0)
    assert runtime.placement_status().handoffs == 0
    back_again(robot, "second", greedy)


def test_the_other_engine_is_lost_after_the_answer_was_told_to_leave(robot: Robot) -> None:
    """It comes back to the engine that gives it up."""
    runtime = robot.runtime
    greedy, expected = undisturbed(runtime), undisturbed(runtime, sampling=SAMPLED)
    with leaving(runtime, sampling=SAMPLED) as answer:
        question = question_of(runtime, answer)
        lose(robot, "second")
        assert question.is_leaving and question.moving_to == "cpu"
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 0)
    assert (result.metrics.path, result.metrics.reused_tokens) == ("local", result.context.tokens)
    back_again(robot, "second", greedy)


def test_the_other_engine_is_lost_when_it_goes_on(robot: Robot) -> None:
    runtime = robot.runtime
    greedy, expected = undisturbed(runtime), undisturbed(runtime, sampling=SAMPLED)
    with leaving(runtime, sampling=SAMPLED) as answer:
        context = engine_of(runtime, "second")._context
        context.decode_tokens = lambda *_: 1 / 0
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 1)
    assert robot.heard.moved == [(answer.answer_id, "cpu")]
    back_again(robot, "second", greedy)


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED])
def test_its_own_engine_is_lost_while_the_history_is_on_its_way(
    robot: Robot, sampling: SamplingParameters
) -> None:
    runtime, is_lost = robot.runtime, threading.Event()
    greedy, expected = undisturbed(runtime), undisturbed(runtime, sampling=sampling)
    with raising(runtime, "cpu", lambda *_: is_lost.is_set()):
        with half_moved(runtime, sampling=sampling) as (answer, _):
            is_lost.set()
        result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("second", 1)
    assert robot.heard.moved == [(answer.answer_id, "second")]
    assert runtime.placement_status().handoffs == 0
    back_again(robot, "cpu", greedy)


@pytest.mark.parametrize("method", ["decode_tokens", "trim"])
def test_its_own_engine_is_lost_while_the_answer_leaves(robot: Robot, method: str) -> None:
    """In the step before that, or when it is to give the answer up."""
    runtime, is_lost = robot.runtime, threading.Event()
    greedy, expected = undisturbed(runtime), undisturbed(runtime, sampling=SAMPLED)
    with raising(runtime, "cpu", lambda *_: is_lost.is_set()):
        with leaving(runtime, sampling=SAMPLED) as answer:
            if method == "trim":
                engine_of(runtime)._context.trim = lambda *_: 1 / 0
            else:
                is_lost.set()
        result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("second", 1)
    assert [name for name, _ in robot.heard.failed] == ["cpu"]
    back_again(robot, "cpu", greedy)


@pytest.mark.parametrize("phase", ["importing", "leaving"])
def test_what_was_to_move_when_its_engine_was_lost_may_move_later(robot: Robot, phase: str) -> None:
    runtime, is_lost = robot.runtime, threading.Event()
    expected = undisturbed(runtime, sampling=SAMPLED)
    with hold_decoding(runtime, "second", after_steps=2) as there:
        with raising(runtime, "cpu", lambda *_: is_lost.is_set()):
            way = half_moved if phase == "importing" else leaving
            with way(runtime, sampling=SAMPLED) as begun:
                answer = begun[0] if isinstance(begun, tuple) else begun
                is_lost.set()
        there.wait_until_reached()
        eventually(lambda: robot.health("cpu") == "ready", "cpu works again")
        question = question_of(runtime, answer)
        assert not question.moving_to and not question.is_leaving
        assert rebalance(runtime, second="cpu") == [answer.answer_id]
        assert question.moving_to == "cpu"
    result = assert_goes_on(answer, expected)
    assert result.metrics.failovers == 1
    assert_nothing_is_kept(runtime)


@pytest.mark.parametrize("n_steps", [3])
def test_a_process_that_is_killed_in_the_middle_of_a_move(start: Start, n_steps: int) -> None:
    """The engine that goes on with the answer is a process of its own."""
    heard = Heard()
    made = Robot(start(engines=(CPU, FAR), placement=AT_ONCE, listener=heard), heard)
    show(made.runtime, "table", changes(1)[0].clip.frames(N_FRAMES))
    settle(made.runtime)
    expected = undisturbed(made.runtime, sampling=SAMPLED)
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    with hold_decoding(made.runtime, after_steps=8) as middle:
        with made.hold("import_range") as gate:
            with hold_decoding(made.runtime, after_steps=n_steps) as first:
                answer = begin(made.runtime, sampling=SAMPLED)
                first.wait_until_reached()
                move(made.runtime, answer, "far")
            gate.wait_until_reached()
            made.kill()
        middle.wait_until_reached()
        eventually(lambda: heard.failed, "the loss is noticed")
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 0)
    made.assert_works_again(greedy)
    assert_nothing_is_kept(made.runtime)


# -------------------------------------------------------------------------------- all at once
@pytest.mark.parametrize("seed", [1, 2])
def test_answers_that_move_all_the_time(
    robot: Robot, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """To and fro whenever anything happens, with cancels, evictions, lost engines and resets in
    between: every answer has the tokens that it has alone."""
    runtime, rng = robot.runtime, random.Random(seed)
    greedy = undisturbed(runtime)
    samplings = (GREEDY, SAMPLED, PENALISED)
    alone = [undisturbed(runtime, sampling=sampling) for sampling in samplings]
    asked: list[tuple[Answer, int, bool]] = []
    mover(runtime).targets = {"cpu": "second", "second": "cpu"}
    for step in range(60):
        which, is_cancelled = rng.randrange(3), rng.random() < 0.2
        while runtime.question_status().pending > 5:
            time.sleep(0.001)
        try:
            answer = begin(runtime, sampling=samplings[which])
        except QuestionRejected as rejection:
            assert rejection.reason == "engine_failed", "both are lost"
            continue
        asked.append((answer, which, is_cancelled))
        if is_cancelled:
            eventually(lambda a=answer: _has_begun(runtime, a))
            answer.cancel()
        if rng.random() < 0.3:
            runtime.evict("table", rng.choice(("cpu", "second")))
        if step % 20 == 10 and all(robot.health(name) == "ready" for name in ("cpu", "second")):
            lost = engine_of(runtime, rng.choice(("cpu", "second")))._context
            lost.decode_tokens = lambda *_: 1 / 0
        if step == 40:
            runtime.reset("table")
            show(runtime, "table", changes(1)[0].clip.frames(N_FRAMES))
    for answer, which, is_cancelled in asked:
        result = answer.result(PATIENCE_S)
        is_lost = "no other engine is left" in result.error
        assert is_lost or not result.error
        n = len(result.token_ids) if is_cancelled or is_lost else None
        assert result.token_ids == alone[which].token_ids[:n], (answer.answer_id, result)
    assert runtime.placement_status().handoffs > 10
    mover(runtime).targets = {}
    for name in ("cpu", "second"):
        eventually(lambda n=name: robot.health(n) == "ready", f"{name} works")
    robot.assert_each_ended_once()
    assert_works(runtime, greedy)
    assert "the coordinator failed" not in caplog.text


def _has_begun(runtime: Runtime, answer: Answer) -> bool:
    """It has a token, or has ended already."""
    question = runtime._loaded().answering.questions.get(answer.answer_id)
    return question is None or question.first_token is not None
