"""What comes after a question cannot change its answer; what was registered before it does."""

from __future__ import annotations

import pytest
from helpers import (
    PATIENCE_S,
    Change,
    Start,
    all_encoded,
    changes,
    eventually,
    hold_decoding,
    hold_encoder,
    hold_ingestion,
    hold_prefill,
    settle,
    show,
)
from two_engines import POLICIES, TWO

from edge_vlm_ros.history import History
from edge_vlm_ros.runtime import (
    AnswerState,
    AskOptions,
    PlanningConfig,
    Runtime,
    StreamConfig,
    VersionBinding,
)
from tools.reference_loop import ReferenceLoop

ONE_ENGINE = "one engine"


@pytest.fixture(params=[ONE_ENGINE, *POLICIES])
def runtime(start: Start, request: pytest.FixtureRequest) -> Runtime:
    """The stream ``table`` on one engine, or on two under each policy; frames are computed on
    ``cpu``, which can be held."""
    if request.param == ONE_ENGINE:
        return start()
    return start(
        *[StreamConfig(name, max_pending_frames=64, ingest_engine="cpu") for name in STREAMS],
        engines=TWO,
        planning=PlanningConfig(policy=request.param, calibration="never"),
    )


STREAMS = ("table", "shelf")
CHANGES = pytest.mark.parametrize("change", changes(2), ids=lambda change: change.text)


def alone(reference: ReferenceLoop, change: Change, n_frames: int) -> list[int]:
    reference.reset()
    for frame in change.clip.frames(n_frames):
        reference.add_frame(frame)
    return reference.ask(change.text)[0]


@CHANGES
def test_a_frame_after_the_question_is_not_seen(
    runtime: Runtime, reference: ReferenceLoop, change: Change
) -> None:
    """Frame and question wait for the encoder together."""
    frames = change.clip.frames(change.stop + 1)
    with hold_encoder(runtime) as gate:
        show(runtime, "table", frames[:-1])
        before = runtime.ask("table", change.text)
        show(runtime, "table", frames[-1:], change.stop)
        after = runtime.ask("table", change.text)
        gate.open()
        results = before.result(PATIENCE_S), after.result(PATIENCE_S)
    assert list(results[0].token_ids) == alone(reference, change, change.stop)
    assert list(results[1].token_ids) == alone(reference, change, change.stop + 1)
    assert [r.text for r in results] == [change.before, change.after]
    assert [r.context.frames for r in results] == [change.stop, change.stop + 1]


@pytest.mark.parametrize("hold", [hold_prefill, hold_decoding])
def test_a_frame_during_the_answer_is_not_seen(
    runtime: Runtime, reference: ReferenceLoop, hold: object
) -> None:
    """The frame is encoded while the answer is being made, and computed between its steps."""
    change = changes(1)[0]
    frames = change.clip.frames(change.stop + 1)
    show(runtime, "table", frames[:-1])
    settle(runtime)
    with hold(runtime) as gate:  # type: ignore[operator]
        answer = runtime.ask("table", change.text, AskOptions(engine="cpu"))
        gate.wait_until_reached()
        show(runtime, "table", frames[-1:], change.stop)
        eventually(lambda: all_encoded(runtime, "table"))
        gate.open()
        result = answer.result(PATIENCE_S)
    assert list(result.token_ids) == alone(reference, change, change.stop)
    settle(runtime)
    assert runtime.ask("table", change.text).result(PATIENCE_S).text == change.after


@CHANGES
def test_a_frame_before_the_question_is_waited_for(runtime: Runtime, change: Change) -> None:
    """Registered, and not encoded before the question waits for it."""
    frames = change.clip.frames(change.stop + 1)
    show(runtime, "table", frames[:-1])
    settle(runtime)
    with hold_encoder(runtime) as gate:
        show(runtime, "table", frames[-1:], change.stop)
        answer = runtime.ask("table", change.text)
        gate.wait_until_reached()
        update = answer.next_update(PATIENCE_S)
        assert update is not None and update.state is AnswerState.WAITING_CONTEXT
        status = runtime.stream_status("table")
        assert status.encoded.n == status.registered.n - 1
        gate.open()
        assert answer.result(PATIENCE_S).text == change.after


def test_a_frame_encoded_but_not_computed_is_waited_for(runtime: Runtime) -> None:
    change = changes(1)[0]
    frames = change.clip.frames(change.stop + 1)
    show(runtime, "table", frames[:-1])
    settle(runtime)
    with hold_ingestion(runtime) as gate:
        show(runtime, "table", frames[-1:], change.stop)
        gate.wait_until_reached()
        answer = runtime.ask("table", change.text)
        status = runtime.stream_status("table")
        assert status.encoded == status.registered != status.published
        gate.open()
        assert answer.result(PATIENCE_S).text == change.after


def test_other_questions_are_not_seen(runtime: Runtime, reference: ReferenceLoop) -> None:
    change = changes(1)[0]
    show(runtime, "table", change.clip.frames(change.stop))
    others = ["Is there a dog?", "What is in the middle?", "Describe the scene."]
    with hold_decoding(runtime) as gate:
        first = runtime.ask("table", others[0], AskOptions(engine="cpu"))
        answers = [first, *[runtime.ask("table", text) for text in (*others[1:], change.text)]]
        gate.wait_until_reached()
        gate.open()
        results = [answer.result(PATIENCE_S) for answer in answers]
    alone(reference, change, change.stop)
    for result in results:
        assert list(result.token_ids) == reference.ask(result.question)[0]


def test_a_reset_is_complete(runtime: Runtime, reference: ReferenceLoop) -> None:
    """A question from before the reset keeps what it sees; one from after sees nothing of it."""
    old, new = changes(2)
    with hold_encoder(runtime) as gate:
        show(runtime, "table", old.clip.frames(old.stop))
        before = runtime.ask("table", old.text)
        version = runtime.reset("table")
        show(runtime, "table", new.clip.frames(new.stop))
        after = runtime.ask("table", new.text)
        gate.open()
        results = before.result(PATIENCE_S), after.result(PATIENCE_S)
    assert list(results[0].token_ids) == alone(reference, old, old.stop)
    assert list(results[1].token_ids) == alone(reference, new, new.stop)
    assert results[1].context.version.epoch == version.epoch
    settle(runtime)
    with pytest.raises(Exception, match="not available"):
        runtime.ask("table", old.text, AskOptions(binding=VersionBinding(0, 1)))


def test_a_question_of_an_epoch_that_was_replaced_twice(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever replaces an epoch, the question keeps the window it was asked about."""
    monkeypatch.setattr(History, "must_wait", lambda history: False)
    runtime = start()
    change = changes(1)[0]
    frames = change.clip.frames(change.stop + 30)
    with hold_encoder(runtime) as gate:
        show(runtime, "table", frames[: change.stop])
        answer = runtime.ask("table", change.text)
        show(runtime, "table", frames[change.stop :], change.stop)
        assert runtime.stream_status("table").registered.epoch >= 2
        gate.open()
        result = answer.result(PATIENCE_S)
    assert (result.text, result.context.version.epoch) == (change.before, 0)
    settle(runtime)
    assert runtime._loaded().streams["table"].history.epochs[0].number >= 2  # the old one is gone
