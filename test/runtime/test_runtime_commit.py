"""Answers become part of the history on request, and later questions see them."""

from __future__ import annotations

import pytest
from helpers import PATIENCE_S, Start, answered, changes, clip, hold_decoding, settle, show

from edge_vlm_ros.history import HistoryFull
from edge_vlm_ros.runtime import (
    AskOptions,
    CommitError,
    FinishReason,
    HistoryConfig,
    QuestionLimits,
    Runtime,
)
from tools.reference_loop import ReferenceLoop

QUESTION = "Describe the scene."
COMMIT = AskOptions(commit=True)


@pytest.mark.parametrize("by_service", [False, True])
def test_later_questions_see_the_turn(
    runtime: Runtime, reference: ReferenceLoop, by_service: bool
) -> None:
    change = changes(1)[0]
    frames = change.clip.frames(change.stop)
    show(runtime, "table", frames)
    first = runtime.ask("table", QUESTION, AskOptions(commit=not by_service)).result(PATIENCE_S)
    assert first.committed is not by_service
    if by_service:
        version = runtime.commit(first.answer_id)
        assert version == runtime.stream_status("table").registered
    second = runtime.ask("table", change.text).result(PATIENCE_S)
    assert (first.context.turns, second.context.turns) == (0, 1)
    assert second.context.version.n == first.context.version.n + 1
    turn = len(first.token_ids) + first.metrics.prompt_tokens + 5  # the closing text
    assert second.context.tokens == first.context.tokens + turn
    assert second.context.identity != first.context.identity
    assert second.text == change.before
    reference.reset()
    for frame in frames:
        reference.add_frame(frame)
    reference.commit(QUESTION, first.text)
    assert reference.n_past == second.context.tokens
    assert reference.ask(change.text)[0] == list(second.token_ids)


def test_describe_lists_everything(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(2), first=7)
    result = runtime.ask("table", QUESTION, COMMIT).result(PATIENCE_S)
    settle(runtime)
    lines = runtime.describe("table")
    assert len(lines) == 4
    assert lines[0].startswith("0.1 published: open")
    assert lines[1].startswith("0.2 published: frame 0, stamp 0.000 s, 52 tokens")
    assert lines[3].startswith("0.4 published: turn") and result.text in lines[3]
    status = runtime.stream_status("table")
    assert (status.frames, status.turns) == (2, 1)


def test_an_answer_is_committed_once(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(1))
    by_option = runtime.ask("table", QUESTION, COMMIT).result(PATIENCE_S)
    by_service = runtime.ask("table", QUESTION).result(PATIENCE_S)
    runtime.commit(by_service.answer_id)
    for answer_id in (by_option.answer_id, by_service.answer_id):
        with pytest.raises(CommitError, match="already"):
            runtime.commit(answer_id)
    assert runtime.stream_status("table").turns == 2


def test_incomplete_answers_are_not_committed(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(1))
    with pytest.raises(CommitError, match="has not finished"):
        runtime.commit(77)
    with hold_decoding(runtime) as gate:
        answer = runtime.ask("table", QUESTION, COMMIT)
        gate.wait_until_reached()
        with pytest.raises(CommitError, match="has not finished"):
            runtime.commit(answer.answer_id)
        answer.cancel()
        runtime.question_status()  # comes back when the engine has been told
        gate.open()
        result = answer.result(PATIENCE_S)
    assert (result.finish_reason, result.committed) == (FinishReason.CANCELLED, False)
    with pytest.raises(CommitError, match="cancelled"):
        runtime.commit(answer.answer_id)
    assert runtime.stream_status("table").turns == 0


def test_a_stop_string_is_no_part_of_the_turn(runtime: Runtime) -> None:
    show(runtime, "table", clip(1).frames(1))
    options = AskOptions(stop=(" on",), commit=True)
    result = runtime.ask("table", "Is there a dog?", options).result(PATIENCE_S)
    assert result.finish_reason is FinishReason.STOP_STRING and result.committed
    (turn,) = runtime._loaded().streams["table"].history.current.turns(3)
    said = b"".join(runtime._maker.vocabulary.piece(token) for token in turn.tokens).decode()
    assert result.text in said and result.text + " on" not in said


def test_turns_are_kept_when_the_oldest_frames_go(runtime: Runtime) -> None:
    change = changes(1)[0]
    show(runtime, "table", clip(1).frames(3))
    turn = runtime.ask("table", "Is there a dog?", COMMIT).result(PATIENCE_S)
    show(runtime, "table", clip(1).frames(16)[3:])
    status = runtime.stream_status("table")
    assert status.registered.epoch == 1 and status.turns == 1
    assert turn.text in "\n".join(runtime.describe("table"))
    runtime.reset("table")
    show(runtime, "table", change.clip.frames(change.stop))
    assert answered(runtime.ask("table", change.text)) == change.before
    assert runtime.stream_status("table").turns == 0


@pytest.mark.parametrize("by_service", [False, True])
def test_a_reset_forgets_answers_about_what_was_before(runtime: Runtime, by_service: bool) -> None:
    show(runtime, "table", clip(1).frames(1))
    if by_service:
        result = runtime.ask("table", QUESTION).result(PATIENCE_S)
        runtime.reset("table")
        with pytest.raises(CommitError, match="before its reset"):
            runtime.commit(result.answer_id)
    else:
        with hold_decoding(runtime) as gate:
            answer = runtime.ask("table", QUESTION, COMMIT)
            gate.wait_until_reached()
            runtime.reset("table")
            gate.open()
            result = answer.result(PATIENCE_S)
        assert result.finish_reason is FinishReason.STOP and result.text
        assert not result.committed and "before its reset" in result.error
    assert runtime.stream_status("table").turns == 0


def test_a_full_history_refuses_a_turn_and_says_so(start: Start) -> None:
    limits = QuestionLimits(max_question_tokens=16, default_max_tokens=16, max_answer_tokens=16)
    history = HistoryConfig(max_frames=4, keep_frames=2, max_tokens=3 + 4 * 52, on_full="reject")
    runtime = start(history=history, questions=limits)
    show(runtime, "table", clip(1).frames(4))
    result = runtime.ask("table", "Is there a dog?", COMMIT).result(PATIENCE_S)
    assert not result.committed and "full" in result.error and result.text
    with pytest.raises(HistoryFull, match="policy is reject"):
        runtime.commit(result.answer_id)
    assert runtime.stream_status("table").turns == 0
