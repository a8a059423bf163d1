"""Every accepted question ends, whatever happens: cancelled, late, deactivated, failing parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    all_encoded,
    answered,
    assert_released,
    changes,
    clip,
    engine_of,
    eventually,
    hold_decoding,
    hold_encoder,
    hold_ingestion,
    hold_prefill,
    settle,
    show,
)

from edge_vlm_ros.engines.errors import ComputeError
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AnswerState,
    AskOptions,
    EngineConfig,
    FinishReason,
    NotActiveError,
    PlacementConfig,
    QuestionLimits,
    QuestionRejected,
    Runtime,
    RuntimeListener,
)
from edge_vlm_ros.vision.errors import EncoderError

ONE_AT_A_TIME = EngineConfig(n_threads=1, max_parallel=1)
QUESTION = "Describe the scene."

Hold = Callable[[Runtime], Any]
STATES = pytest.mark.parametrize(
    ("state", "hold", "parallel"),
    [
        (AnswerState.WAITING_CONTEXT, hold_encoder, 4),
        (AnswerState.WAITING_CONTEXT, hold_ingestion, 4),
        (AnswerState.QUEUED, hold_decoding, 1),
        (AnswerState.PREFILL, hold_prefill, 4),
        (AnswerState.DECODING, hold_decoding, 4),
    ],
)


def in_state(runtime: Runtime, state: AnswerState, gate: Any, **options: Any) -> Answer:
    """An answer that stays in ``state`` until the gate is opened."""
    if state is AnswerState.QUEUED:
        runtime.ask("table", QUESTION)
        gate.wait_until_reached()
        answer = runtime.ask("table", QUESTION, AskOptions(**options))
    else:
        answer = runtime.ask("table", QUESTION, AskOptions(**options))
        gate.wait_until_reached()
    while True:
        update = answer.next_update(PATIENCE_S)
        assert update is not None
        if update.state is state:
            return answer


def within_a_step(result: AnswerResult, state: AnswerState) -> bool:
    """Whether an answer ended at the step that its gate held: the last chunk of a question gives
    one token, and answers are held before their fourth decode step."""
    most = {AnswerState.PREFILL: 1, AnswerState.DECODING: 5}.get(state, 0)
    least = 4 if state is AnswerState.DECODING else 0
    return least <= len(result.token_ids) <= most


def undisturbed(runtime: Runtime) -> None:
    """The runtime answers as if nothing had happened, and holds nothing back."""
    change = changes(1)[0]
    runtime.reset("table")
    show(runtime, "table", change.clip.frames(change.stop))
    assert answered(runtime.ask("table", change.text)) == change.before
    assert_released(runtime)


@STATES
def test_cancel(start: Start, state: AnswerState, hold: Hold, parallel: int) -> None:
    runtime = start(engine=EngineConfig(n_threads=1, max_parallel=parallel))
    show(runtime, "table", clip(1).frames(1))
    if state is not AnswerState.WAITING_CONTEXT:
        settle(runtime)
    with hold(runtime) as gate:
        answer = in_state(runtime, state, gate)
        answer.cancel()
        answer.cancel()
        runtime.question_status()  # comes back when the engine has been told
        if state is AnswerState.WAITING_CONTEXT:
            assert answer.result(PATIENCE_S).finish_reason is FinishReason.CANCELLED
        gate.open()
        result = answer.result(PATIENCE_S)
    assert result.finish_reason is FinishReason.CANCELLED and result.error == ""
    assert bool(result.text) == bool(result.token_ids)
    assert within_a_step(result, state)
    assert result.metrics.total_ms >= result.metrics.context_wait_ms
    undisturbed(runtime)


@STATES
def test_deadline(start: Start, state: AnswerState, hold: Hold, parallel: int) -> None:
    runtime = start(engine=EngineConfig(n_threads=1, max_parallel=parallel))
    show(runtime, "table", clip(1).frames(1))
    if state is not AnswerState.WAITING_CONTEXT:
        settle(runtime)
    coordinator = runtime._loaded()
    late = threading.Event()
    coordinator._clock = lambda: time.monotonic() + (1e6 if late.is_set() else 0.0)
    coordinator.answering._clock = coordinator._clock
    with hold(runtime) as gate:
        answer = in_state(runtime, state, gate, deadline_s=1e5)
        late.set()
        runtime.question_status()  # the coordinator looks at its clock after any message,
        runtime.question_status()  # and has told the engine when this one comes back
        if state is AnswerState.WAITING_CONTEXT:
            assert answer.result(PATIENCE_S).finish_reason is FinishReason.DEADLINE
        gate.open()
        result = answer.result(PATIENCE_S)
    assert result.finish_reason is FinishReason.DEADLINE
    assert within_a_step(result, state)
    late.clear()
    undisturbed(runtime)


def test_a_deadline_needs_no_other_message(runtime: Runtime) -> None:
    with hold_encoder(runtime):
        show(runtime, "table", clip(1).frames(1))
        answer = runtime.ask("table", QUESTION, AskOptions(deadline_s=0.02))
        result = answer.result(PATIENCE_S)
    assert result.finish_reason is FinishReason.DEADLINE
    assert result.metrics.total_ms >= 20


@STATES
def test_deactivate(start: Start, state: AnswerState, hold: Hold, parallel: int) -> None:
    runtime = start(engine=EngineConfig(n_threads=1, max_parallel=parallel))
    show(runtime, "table", clip(1).frames(1))
    if state is not AnswerState.WAITING_CONTEXT:
        settle(runtime)
    with hold(runtime) as gate:
        answer = in_state(runtime, state, gate)
        if state is not AnswerState.WAITING_CONTEXT:
            with pytest.raises(TimeoutError):
                runtime.deactivate(timeout=0.01)
            gate.open()
        runtime.deactivate(PATIENCE_S)
        result = answer.result(PATIENCE_S)
        assert result.finish_reason is FinishReason.CANCELLED
        with pytest.raises(NotActiveError):
            show(runtime, "table", clip(1).frames(1))
        with pytest.raises(QuestionRejected, match="not active") as rejection:
            runtime.ask("table", QUESTION)
        assert rejection.value.reason == "inactive"
    runtime.activate()
    undisturbed(runtime)


def test_fifty_questions_at_once_on_a_queue_of_eight(start: Start) -> None:
    runtime = start("table", "shelf", questions=QuestionLimits(max_pending=8))
    for name in ("table", "shelf"):
        show(runtime, name, clip(1).frames(2))
    outcomes: list[object] = []
    barrier = threading.Barrier(50)

    def ask(k: int) -> None:
        barrier.wait()
        try:
            answer = runtime.ask(("table", "shelf")[k % 2], QUESTION)
            outcomes.append(answer.result(PATIENCE_S))
        except QuestionRejected as rejection:
            outcomes.append(rejection)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(50)]
    with hold_prefill(runtime) as gate:
        for thread in threads:
            thread.start()
        eventually(lambda: sum(runtime.question_status().rejected.values()) == 42)
        gate.open()
        for thread in threads:
            thread.join(PATIENCE_S)
    rejections = [o for o in outcomes if isinstance(o, QuestionRejected)]
    results = [o for o in outcomes if not isinstance(o, QuestionRejected)]
    assert (len(rejections), len(results)) == (42, 8)
    assert {r.reason for r in rejections} == {"queue_full"}
    assert {r.finish_reason for r in results} == {FinishReason.STOP}  # type: ignore[attr-defined]
    status = runtime.question_status()
    assert (status.accepted, status.pending) == (8, 0)
    assert (status.rejected, status.finished) == ({"queue_full": 42}, {"stop": 8})


class Heard(RuntimeListener):
    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []
        self.dropped: list[tuple[str, str]] = []

    def engine_failed(self, engine: str, error: str) -> None:
        self.failed.append((engine, error))

    def frame_dropped(self, stream: str, reason: str, text: str) -> None:
        self.dropped.append((reason, text))


def test_a_failing_engine_ends_every_question_with_the_reason(start: Start) -> None:
    heard = Heard()
    later = PlacementConfig(retry_s=600.0, max_retry_s=600.0)
    runtime = start("table", "shelf", engine=ONE_AT_A_TIME, listener=heard, placement=later)
    show(runtime, "table", clip(1).frames(1))
    settle(runtime)
    with hold_decoding(runtime) as gate, hold_encoder(runtime):
        answers = [runtime.ask("table", QUESTION) for _ in range(2)]
        gate.wait_until_reached()
        show(runtime, "shelf", clip(1).frames(1))
        answers.append(runtime.ask("shelf", QUESTION))  # still waits for its context
        engine_of(runtime)._context.trim = _fail  # type: ignore[method-assign]
        answers[0].cancel()
        gate.open()
        results = [answer.result(PATIENCE_S) for answer in answers]
    for result in results:
        assert result.finish_reason is FinishReason.ERROR
        assert "the device is gone" in result.error
    with pytest.raises(QuestionRejected, match="the device is gone") as rejection:
        runtime.ask("table", QUESTION)
    assert rejection.value.reason == "engine_failed"
    assert [engine for engine, _ in heard.failed] == ["cpu"]
    reading = runtime.engine_status()[0]
    assert (reading.state, reading.failures) == ("failed", 1) and reading.retry_in_s > 500.0
    assert "the device is gone" in reading.error
    before = runtime.stream_status("table")
    show(runtime, "table", clip(1).frames(1))
    after = runtime.stream_status("table")
    assert after.frames_received == before.frames_received + 1
    assert after.frames_dropped == before.frames_dropped + 1
    assert heard.dropped[-1][0] == "engine_failed"
    runtime.deactivate(PATIENCE_S)
    runtime.close()


def _fail(*arguments: object) -> None:
    raise RuntimeError("the device is gone")


def test_a_frame_that_cannot_be_encoded_is_left_out(start: Start) -> None:
    heard = Heard()
    runtime = start(listener=heard)
    change = changes(1)[0]
    frames = change.clip.frames(change.stop)
    bad = clip(9).frames(1)[0]
    original = runtime._parts.encoder.encoders[0].encode

    def encode(rgb: Any) -> Any:
        if (rgb == bad).all():
            raise EncoderError("the encoder had a hiccup")
        return original(rgb)

    runtime._parts.encoder.encoders[0].encode = encode  # type: ignore[method-assign]
    show(runtime, "table", [*frames[:1], bad, *frames[1:], bad])
    result = runtime.ask("table", change.text).result(PATIENCE_S)
    assert (result.text, result.context.frames) == (change.before, change.stop)
    assert heard.dropped == [("encoder_failed", "the encoder had a hiccup")] * 2
    status = runtime.stream_status("table")
    assert (status.frames_failed, status.frames_registered) == (2, change.stop + 2)
    assert status.frames == change.stop
    settle(runtime)


@pytest.mark.parametrize("n_failures", [1, 2])
def test_ingestion_is_tried_again(start: Start, n_failures: int) -> None:
    """More frames are handed over while the first attempt fails: none is computed twice or lost."""
    runtime = start()
    change = changes(1)[0]
    frames = change.clip.frames(change.stop + 1)
    failures = iter(range(n_failures))
    original = engine_of(runtime)._context.decode_embeddings

    def decode(*arguments: Any) -> None:
        if next(failures, None) is not None:
            raise ComputeError("a hiccup")
        original(*arguments)

    engine_of(runtime)._context.decode_embeddings = decode  # type: ignore[method-assign]
    with hold_ingestion(runtime) as gate:
        show(runtime, "table", frames[:-1])
        gate.wait_until_reached()
        eventually(lambda: all_encoded(runtime, "table"))
        answer = runtime.ask("table", change.text)
        gate.open()
        assert answered(answer) == change.before
    show(runtime, "table", frames[-1:], change.stop)
    assert answered(runtime.ask("table", change.text)) == change.after
    assert_released(runtime)


def test_ingestion_that_fails_for_good_ends_the_questions_that_wait(start: Start) -> None:
    runtime = start("table", "shelf")
    original = engine_of(runtime)._context.decode_embeddings
    engine_of(runtime)._context.decode_embeddings = _refuse  # type: ignore[method-assign]
    show(runtime, "table", clip(1).frames(2))
    answers = [runtime.ask("table", QUESTION) for _ in range(2)]
    for answer in answers:
        result = answer.result(PATIENCE_S)
        assert result.finish_reason is FinishReason.ERROR and "out of luck" in result.error
    again = runtime.ask("table", QUESTION).result(PATIENCE_S)
    assert again.finish_reason is FinishReason.ERROR
    engine_of(runtime)._context.decode_embeddings = original  # type: ignore[method-assign]
    result = runtime.ask("table", QUESTION).result(PATIENCE_S)
    assert result.finish_reason is FinishReason.STOP and result.context.frames == 2
    undisturbed(runtime)


def _refuse(*arguments: object) -> None:
    raise ComputeError("out of luck")


def test_closing_ends_what_runs(start: Start) -> None:
    runtime = start(engine=ONE_AT_A_TIME)
    show(runtime, "table", clip(1).frames(1))
    settle(runtime)
    with hold_encoder(runtime) as encoder:
        answers = [runtime.ask("table", QUESTION) for _ in range(3)]
        show(runtime, "table", clip(1).frames(2)[1:])
        answers.append(runtime.ask("table", QUESTION))
        encoder.wait_until_reached()
        encoder.open()
        runtime.close()
    for answer in answers:
        result = answer.result(PATIENCE_S)
        assert result.finish_reason in (FinishReason.CANCELLED, FinishReason.STOP)
    answers[0].cancel()  # too late: nothing happens


def test_closing_ends_what_the_engine_does_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is busy for longer than close waits gives no further event."""
    monkeypatch.setattr("edge_vlm_ros.runtime.runtime.CLOSE_TIMEOUT_S", 0.01)
    runtime = start()
    show(runtime, "table", clip(1).frames(1))
    settle(runtime)
    with hold_prefill(runtime) as gate:
        answers = [runtime.ask("table", QUESTION) for _ in range(2)]
        gate.wait_until_reached()
        engine_of(runtime).submit = lambda command: None  # type: ignore[method-assign]
        closing = threading.Thread(target=runtime.close)
        closing.start()
        eventually(lambda: not runtime.active)
        eventually(lambda: engine_of(runtime)._commands.qsize() > 0, "close has lost its patience")
        gate.open()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()
    for answer in answers:
        result = answer.result(PATIENCE_S)
        assert result.finish_reason in (FinishReason.CANCELLED, FinishReason.STOP)
