"""An engine is lost: what it was doing goes on on another one, with the tokens it would have had.

The second engine is a process of its own, killed at moments that a held native call makes certain.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from helpers import PATIENCE_S, Gate, Start, changes, eventually, settle, show
from robot import (
    AT_ONCE,
    CPU,
    FAR,
    GREEDY,
    N_FRAMES,
    NEVER,
    NO_SNAPSHOTS,
    PENALISED,
    QUESTION,
    SAMPLED,
    SECOND,
    Heard,
    MakeRobot,
    Robot,
    assert_goes_on,
    decode_step,
    is_prefill,
    raising,
)

from edge_vlm_ros.engines.errors import ContextError
from edge_vlm_ros.runtime import (
    Answer,
    AskOptions,
    EngineConfig,
    FinishReason,
    PlacementConfig,
    QuestionRejected,
    Runtime,
    SamplingParameters,
)


@pytest.fixture
def robot(start: Start) -> MakeRobot:
    def make(
        *engines: EngineConfig, placement: PlacementConfig = AT_ONCE, ingest_on: str = ""
    ) -> Robot:
        heard = Heard()
        made = Robot(
            start(engines=engines or (CPU, FAR), placement=placement, listener=heard), heard
        )
        if ingest_on:
            made.runtime.move_ingestion("table", ingest_on)
        show(made.runtime, "table", changes(1)[0].clip.frames(N_FRAMES))
        settle(made.runtime)
        return made

    return make


# ------------------------------------------------------------------------- in mid-answer
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED])
@pytest.mark.parametrize("n_steps", [0, 9])
def test_an_answer_goes_on_elsewhere_with_the_same_tokens(
    robot: MakeRobot, sampling: SamplingParameters, n_steps: int
) -> None:
    made = robot()
    expected = made.ask(engine="far", sampling=sampling).result(PATIENCE_S)
    assert expected.metrics.engine == "far" and len(expected.token_ids) > n_steps + 2
    with made.hold("decode_tokens", when=decode_step(n_steps)) as gate:
        answer = made.ask(engine="far", sampling=sampling)
        gate.wait_until_reached()
        made.kill()
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 1)
    assert made.heard.moved == [(answer.answer_id, "cpu")]
    ((engine, error),) = made.heard.failed
    assert engine == "far" and error
    assert made.reading().failures == 1
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    made.assert_works_again(greedy)
    assert made.runtime.placement_status().failovers == 1


def test_several_answers_go_on_and_those_of_other_engines_are_not_touched(robot: MakeRobot) -> None:
    made = robot()
    samplings = (GREEDY, SAMPLED, PENALISED)
    expected = [made.ask(engine="far", sampling=s).result(PATIENCE_S) for s in samplings]
    with made.hold("decode_tokens", when=decode_step(5)) as gate:
        answers = [made.ask(engine="far", sampling=s) for s in samplings]
        gate.wait_until_reached()
        other = made.ask(engine="cpu")
        made.kill()
    for answer, undisturbed in zip(answers, expected, strict=True):
        assert assert_goes_on(answer, undisturbed).metrics.failovers == 1
    assert assert_goes_on(other, expected[0]).metrics.failovers == 0
    made.assert_works_again(expected[0])


def test_a_question_that_is_being_prefilled_is_prefilled_elsewhere(robot: MakeRobot) -> None:
    made = robot()
    expected = made.ask(engine="far").result(PATIENCE_S)
    with made.hold("decode_tokens", when=is_prefill) as gate:
        answer = made.ask(engine="far")
        gate.wait_until_reached()
        made.kill()
    assert assert_goes_on(answer, expected).metrics.engine == "cpu"
    made.assert_works_again(expected)


def test_an_engine_that_raises_is_lost_like_one_that_died(robot: MakeRobot) -> None:
    made = robot()
    expected = made.ask(engine="cpu", sampling=SAMPLED).result(PATIENCE_S)
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    with raising(made.runtime, "cpu", decode_step(4)):
        answer = made.ask(engine="cpu", sampling=SAMPLED)
        result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("far", 1)
    assert made.heard.failed == [("cpu", "RuntimeError: out of luck")]
    made.assert_works_again(greedy, "cpu")


def test_an_answer_survives_the_loss_of_both_engines_one_after_the_other(robot: MakeRobot) -> None:
    made = robot(CPU, FAR, SECOND)
    expected = made.ask(engine="far", sampling=SAMPLED).result(PATIENCE_S)
    with raising(made.runtime, "cpu", decode_step(4)):
        with made.hold("decode_tokens", when=decode_step(4)) as gate:
            answer = made.ask(engine="far", sampling=SAMPLED)
            gate.wait_until_reached()
            made.kill()
        result = assert_goes_on(answer, expected)
    assert result.metrics.failovers >= 1
    moves = [engine for _, engine in made.heard.moved]
    assert moves[-1] == result.metrics.engine and result.metrics.failovers == len(moves)
    made.assert_works_again(made.ask(engine="second").result(PATIENCE_S))


# ------------------------------------------------------------------------- history on the way
def test_ingestion_goes_on_on_another_engine(robot: MakeRobot) -> None:
    made = robot(ingest_on="far")
    with made.hold("decode_embeddings") as gate:
        made.see(N_FRAMES)
        answer = made.ask()
        gate.wait_until_reached()
        made.kill()
    result = answer.result(PATIENCE_S)
    assert (result.metrics.engine, result.context.frames) == ("cpu", N_FRAMES + 1)
    settle(made.runtime)
    made.assert_works_again(result)
    made.see(N_FRAMES + 1)  # the engine that was chosen ingests again
    settle(made.runtime)
    assert made.runtime.stream_status("table").ingest_engine == "far"
    last = made.ask(path="local").result(PATIENCE_S)
    assert last.metrics.engine == "far" and last.context.frames == N_FRAMES + 2
    assert last.token_ids == made.ask(engine="cpu", path="replay").result(PATIENCE_S).token_ids


def test_a_history_that_cannot_be_exported_any_more_is_replayed(robot: MakeRobot) -> None:
    made = robot(ingest_on="far")
    expected = made.ask(engine="far").result(PATIENCE_S)
    with made.hold("export_range") as gate:
        answer = made.ask(engine="cpu", path="import")
        gate.wait_until_reached()
        made.kill()
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.path) == ("cpu", "replay")
    made.assert_works_again(expected)


def test_an_export_for_a_third_engine_is_lost(robot: MakeRobot) -> None:
    """Neither the engine that waits nor the one that ingests has failed, and no frame comes."""
    made = robot(FAR, CPU, SECOND, placement=NO_SNAPSHOTS, ingest_on="far")
    made.runtime.move_ingestion("table", "cpu")
    made.see(N_FRAMES)
    settle(made.runtime)
    expected = made.ask(engine="far").result(PATIENCE_S)
    with made.hold("export_range") as gate:
        answer = made.ask(engine="second", path="import")
        gate.wait_until_reached()
        made.kill()
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("second", 0)
    made.assert_each_ended_once()


def test_a_question_whose_history_is_being_imported_is_answered_elsewhere(
    robot: MakeRobot,
) -> None:
    made = robot()
    expected = made.ask(engine="cpu").result(PATIENCE_S)
    with made.hold("import_range") as gate:
        answer = made.ask(engine="far", path="import")
        gate.wait_until_reached()
        made.kill()
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.path) == ("cpu", "local")
    made.assert_works_again(expected)


# ------------------------------------------------------------------------- handing over
def hand_off(made: Robot, engine: str, gate: Gate) -> Answer:
    """Begin a handoff to ``engine`` and lose the server at the gate."""
    other = "far" if engine == "cpu" else "cpu"
    answer = made.ask(engine=engine, prefill_engine=other, sampling=SAMPLED)
    gate.wait_until_reached()
    made.kill()
    return answer


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("cpu", "export_range"),  # far has computed the question and is to hand it over
        ("far", "import_range"),  # far is to take it
    ],
)
def test_a_handoff_that_the_loss_interrupts(robot: MakeRobot, engine: str, method: str) -> None:
    made = robot()
    made.ask(engine="far").result(PATIENCE_S)  # both hold the history
    expected = made.ask(engine="cpu", sampling=SAMPLED).result(PATIENCE_S)
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    with made.hold(method) as gate:
        answer = hand_off(made, engine, gate)
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 1)
    made.assert_works_again(greedy)


def test_the_engine_an_answer_was_to_go_to_is_lost_before(robot: MakeRobot) -> None:
    """It is noticed while the other engine computes the question, which then keeps it."""
    made = robot()
    made.ask(engine="far").result(PATIENCE_S)
    expected = made.ask(engine="cpu", sampling=SAMPLED).result(PATIENCE_S)
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    with made.hold("decode_tokens", "cpu", is_prefill) as gate:
        answer = hand_off(made, "far", gate)
        notices = made.ask(engine="far", max_tokens=2)
        eventually(lambda: made.heard.failed, "the loss is noticed")
    result = assert_goes_on(answer, expected)
    assert result.metrics.engine == "cpu"
    assert notices.result(PATIENCE_S).token_ids == greedy.token_ids[:2]
    made.assert_works_again(greedy)


# ------------------------------------------------------------------------- nothing to do
def test_a_loss_while_idle_shows_with_the_next_question(robot: MakeRobot) -> None:
    made = robot()
    expected = made.ask(engine="far").result(PATIENCE_S)
    made.kill()
    result = assert_goes_on(made.ask(engine="far"), expected)
    assert result.metrics.engine == "cpu"
    made.assert_works_again(expected)


def test_it_can_be_lost_again_and_again(robot: MakeRobot) -> None:
    made = robot()
    expected = made.ask(engine="far").result(PATIENCE_S)
    for n in range(1, 4):
        with made.hold("decode_tokens", when=decode_step(3)) as gate:
            answer = made.ask(engine="far")
            gate.wait_until_reached()
            made.kill()
        assert assert_goes_on(answer, expected).metrics.failovers == 1
        made.assert_works_again(expected)
        assert made.reading().failures == n


# ------------------------------------------------------------------------- no engine left
def test_the_only_engine_is_lost(robot: MakeRobot) -> None:
    """Its questions end with the reason; frames and questions are refused until it is back."""
    made = robot(FAR, placement=NEVER)
    expected = made.ask().result(PATIENCE_S)
    with made.hold("decode_tokens", when=decode_step(3)) as gate:
        answer, waiting = made.ask(), made.ask(sampling=SAMPLED)
        gate.wait_until_reached()
        made.kill()
    result = answer.result(PATIENCE_S)
    assert result.finish_reason is FinishReason.ERROR
    assert "engine far failed" in result.error and "no other engine is left" in result.error
    assert result.token_ids == expected.token_ids[: len(result.token_ids)]
    assert expected.text.startswith(result.text)
    assert waiting.result(PATIENCE_S).finish_reason is FinishReason.ERROR
    with pytest.raises(QuestionRejected, match="engine far failed") as rejection:
        made.ask()
    assert rejection.value.reason == "engine_failed"
    made.see(N_FRAMES)
    eventually(lambda: made.heard.dropped["engine_failed"] == 1, "the frame is refused")
    reading = made.reading()
    assert (reading.state, reading.failures) == ("failed", 1)
    assert reading.error and reading.retry_in_s > 0
    made.assert_each_ended_once()


def test_the_only_engine_comes_back_and_computes_the_history_again(robot: MakeRobot) -> None:
    made = robot(FAR)
    expected = made.ask().result(PATIENCE_S)
    with made.hold("decode_tokens", when=decode_step(3)) as gate:
        answer = made.ask()
        gate.wait_until_reached()
        made.kill()
    assert answer.result(PATIENCE_S).finish_reason is FinishReason.ERROR
    made.assert_works_again(expected)


def test_the_last_engine_fails_while_the_other_is_still_away(robot: MakeRobot) -> None:
    made = robot(placement=NEVER)
    made.kill()
    assert made.ask(engine="far").result(PATIENCE_S).metrics.engine == "cpu"
    assert made.health() == "failed"
    with raising(made.runtime, "cpu", decode_step(3)):
        result = made.ask().result(PATIENCE_S)
    assert result.finish_reason is FinishReason.ERROR and result.token_ids
    assert "out of luck" in result.error and "no other engine is left" in result.error
    assert [made.health(name) for name in ("cpu", "far")] == ["failed", "failed"]
    made.assert_each_ended_once()


def test_starting_again_is_tried_until_it_works(
    robot: MakeRobot, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = robot()
    expected = made.ask(engine="far").result(PATIENCE_S)
    make, refusals = made.runtime._parts.slots._make, iter(range(2))

    def reluctant(config: EngineConfig, emit: Any) -> Any:
        if next(refusals, None) is not None:
            raise ContextError("not yet")
        return make(config, emit)

    monkeypatch.setattr(made.runtime._parts.slots, "_make", reluctant)
    made.kill()
    assert made.ask(engine="far").result(PATIENCE_S).metrics.engine == "cpu"
    made.assert_works_again(expected)
    assert made.reading().failures == 3


# -------------------------------------------------------------------------------- hanging
def server_pid(runtime: Runtime) -> int:
    return next(
        device.server.pid
        for device in runtime._maker._devices.values()
        if device.server is not None
    )


@pytest.mark.parametrize("end", ["deadline", "cancel"])
def test_a_question_on_an_engine_that_hangs_ends_all_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr("edge_vlm_ros.runtime.answering.END_GRACE_S", 0.2)
    monkeypatch.setattr("edge_vlm_ros.engines.llama_engine.CLOSE_TIMEOUT_S", 0.5)
    runtime = start("table", engines=(CPU, FAR))
    show(runtime, "table", changes(1)[0].clip.frames(N_FRAMES))
    settle(runtime)
    assert runtime.ask("table", QUESTION, AskOptions(engine="far")).result(PATIENCE_S).text
    pid = server_pid(runtime)
    os.kill(pid, signal.SIGSTOP)
    deadline = 0.3 if end == "deadline" else 0.0
    answer = runtime.ask("table", QUESTION, AskOptions(engine="far", deadline_s=deadline))
    if end == "cancel":
        eventually(lambda: runtime._loaded().answering.questions[answer.answer_id].running_on)
        answer.cancel()
    expected = FinishReason.DEADLINE if end == "deadline" else FinishReason.CANCELLED
    assert answer.result(PATIENCE_S).finish_reason is expected
    assert runtime.ask("table", QUESTION, AskOptions(engine="cpu")).result(PATIENCE_S).text
    runtime.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
