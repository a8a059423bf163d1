"""Histories stay within their limits, and answers right about what is left in them."""

from __future__ import annotations

import random

import pytest
from helpers import PATIENCE_S, Start, assert_released, clip, show

from edge_vlm_ros.runtime import (
    HistoryConfig,
    QuestionLimits,
    Runtime,
    RuntimeListener,
    StreamConfig,
)


def test_a_long_stream_is_answered_by_what_its_window_shows(runtime: Runtime) -> None:
    """Truth of the frames that the answer says it had, over many rebuilds."""
    rng = random.Random(11)
    table = clip(2)
    wrong = []
    n_asked = 0
    for k, frame in enumerate(table.frames(36)):
        runtime.add_frame("table", frame, k)
        if k % 2:
            continue
        question = table.question(max(0, k - 4), k + 1, rng)
        result = runtime.ask("table", question.text).result(PATIENCE_S)
        context = result.context
        assert context.last_stamp_ns == k
        assert context.frames == k + 1 - context.first_stamp_ns <= 12
        truth = table.truth(question, context.first_stamp_ns, k + 1)
        if truth is None:
            continue  # the window does not tell
        n_asked += 1
        if result.text != truth:
            wrong.append((question.text, result.text, truth))
    assert n_asked >= 15 and len(wrong) <= 1, wrong
    status = runtime.stream_status("table")
    assert status.registered.epoch == 4
    assert status.frames <= 12


def test_dropped_frames_and_epochs_are_released(runtime: Runtime) -> None:
    for _ in range(3):
        show(runtime, "table", clip(2).frames(15))
        assert_released(runtime)
    assert runtime.stream_status("table").frames <= 12


def test_resets_leave_nothing_behind(start: Start) -> None:
    runtime = start(questions=QuestionLimits(max_pending=32))
    for k in range(25):
        show(runtime, "table", clip(2).frames(1 + k % 4))
        if k % 3:
            runtime.ask("table", "What changed?")
        runtime.reset("table")
    assert_released(runtime)
    assert runtime.vision_status().cache.pinned_entries == 0


def test_the_reject_policy_refuses_frames(start: Start) -> None:
    heard = []

    class Listener(RuntimeListener):
        def frame_dropped(self, stream: str, reason: str, text: str) -> None:
            heard.append((stream, reason, text))

    history = HistoryConfig(max_frames=4, on_full="reject")
    stream = StreamConfig("table", history, max_pending_frames=16)
    runtime = start(stream, listener=Listener())
    show(runtime, "table", clip(2).frames(6))
    result = runtime.ask("table", "Describe the scene.").result(PATIENCE_S)
    assert (result.context.frames, result.context.last_stamp_ns) == (4, 3)
    status = runtime.stream_status("table")
    assert (status.frames_received, status.frames_registered, status.frames_dropped) == (6, 4, 2)
    assert [(name, reason) for name, reason, _ in heard] == [("table", "history_full")] * 2
    assert "4 frames" in heard[0][2] and "reset" in heard[0][2]
    runtime.reset("table")
    show(runtime, "table", clip(2).frames(6)[4:])
    assert runtime.ask("table", "Describe the scene.").result(PATIENCE_S).context.frames == 2


@pytest.mark.parametrize("max_frames", [1, 2, 12])
def test_histories_of_any_length(start: Start, max_frames: int) -> None:
    runtime = start(history=HistoryConfig(max_frames=max_frames))
    table = clip(3)
    rng = random.Random(1)
    n_right = 0
    for k, frame in enumerate(table.frames(13)):
        runtime.add_frame("table", frame, k)
        if k % 4 != 3:
            continue
        question = table.question(k, k + 1, rng)
        result = runtime.ask("table", question.text).result(PATIENCE_S)
        assert result.context.frames <= max_frames
        n_right += result.text == table.truth(question, result.context.first_stamp_ns, k + 1)
    assert n_right == 3
