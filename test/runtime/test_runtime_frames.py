"""From a camera frame to the history: admission, gates, counters, the embedding cache."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers import (
    PATIENCE_S,
    Start,
    answered,
    assert_released,
    clip,
    eventually,
    hold_encoder,
    hold_ingestion,
    settle,
    show,
)

from edge_vlm_ros.history import Version
from edge_vlm_ros.runtime import (
    HistoryConfig,
    NotActiveError,
    Runtime,
    RuntimeListener,
    StreamConfig,
    UnknownStreamError,
    VisionConfig,
)
from edge_vlm_ros.runtime.status import StreamStatus


class Drops(RuntimeListener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def frame_dropped(self, stream: str, reason: str, text: str) -> None:
        assert stream == "table" and text
        self.heard.append(reason)


def counters(status: StreamStatus) -> dict[str, int]:
    return {
        name: getattr(status, f"frames_{name}")
        for name in ("received", "registered", "dropped", "skipped", "invalid", "failed")
        if getattr(status, f"frames_{name}")
    }


def stamps(runtime: Runtime) -> list[int]:
    current = runtime._loaded().streams["table"].history.current
    return [frame.stamp_ns for frame in current.frames(len(current))]


def test_with_latest_the_newest_frame_stands_by(start: Start) -> None:
    drops = Drops()
    runtime = start(StreamConfig("table", max_pending_frames=3), listener=drops)
    with hold_encoder(runtime) as gate:
        show(runtime, "table", clip(1).frames(7))
        status = runtime.stream_status("table")
        assert (status.pending_frames, status.max_pending_frames) == (3, 3)
        assert (status.frames_registered, status.frames_dropped) == (3, 3)
        gate.open()
        eventually(lambda: runtime.stream_status("table").frames_registered == 4)
        settle(runtime)
    assert stamps(runtime) == [0, 1, 2, 6]
    status = runtime.stream_status("table")
    assert counters(status) == {"received": 7, "registered": 4, "dropped": 3}
    assert drops.heard == ["pending_replaced"] * 3
    assert_released(runtime)


def test_a_question_sees_the_frame_on_standby(start: Start) -> None:
    runtime = start(StreamConfig("table", max_pending_frames=2))
    with hold_encoder(runtime) as gate:
        show(runtime, "table", clip(1).frames(4))
        answer = runtime.ask("table", "Describe the scene.")
        show(runtime, "table", clip(1).frames(5)[4:], 4)  # after the question: stands by
        assert stamps(runtime) == [0, 1, 3]
        gate.open()
        result = answer.result(PATIENCE_S)
    assert (result.context.frames, result.context.last_stamp_ns) == (3, 3)
    settle(runtime)
    assert stamps(runtime) == [0, 1, 3, 4]


def test_frames_that_are_not_ingested_yet_are_pending(start: Start) -> None:
    """The encoder alone must not run ahead of a slow language model."""
    runtime = start(StreamConfig("table", max_pending_frames=2))
    with hold_ingestion(runtime) as gate:
        show(runtime, "table", clip(1).frames(6))
        eventually(lambda: runtime.vision_status().cache.misses == 2)
        gate.wait_until_reached()
        assert runtime.stream_status("table").pending_frames == 2
        assert runtime.vision_status().queue_length == 0
        gate.open()
        settle(runtime)
    assert stamps(runtime) == [0, 1, 5]


def test_a_camera_faster_than_ingestion_keeps_publishing(start: Start) -> None:
    """Every epoch catches up before the next one begins, however many frames arrive."""
    heard: list[int] = []

    class Versions(RuntimeListener):
        def version_published(self, version: Version) -> None:
            heard.append(version.epoch)

    history = HistoryConfig(max_frames=3, keep_frames=1)
    stream = StreamConfig("table", history, max_pending_frames=2)
    runtime = start(stream, listener=Versions())
    frames = clip(1).frames(8)
    for k in range(400):
        runtime.add_frame("table", frames[k % 8], k)
        if k % 8 == 0:
            runtime.stream_status("table")  # as far as the coordinator has come
    settle(runtime)
    epochs = range(runtime.stream_status("table").registered.epoch + 1)
    computed = {epoch: heard.count(epoch) for epoch in epochs}
    assert all(n >= 2 for n in computed.values()), f"an epoch never caught up: {computed}"
    assert stamps(runtime)[-1] == 399


def test_a_reset_forgets_the_frame_on_standby(start: Start) -> None:
    runtime = start(StreamConfig("table", max_pending_frames=1))
    with hold_encoder(runtime) as gate:
        show(runtime, "table", clip(1).frames(2))
        runtime.reset("table")
        gate.open()
        settle(runtime)
    assert stamps(runtime) == []
    counted = counters(runtime.stream_status("table"))
    assert counted == {"received": 2, "registered": 1, "dropped": 1}


def test_reject_refuses_new_frames(start: Start) -> None:
    drops = Drops()
    config = StreamConfig("table", max_pending_frames=2, pending_policy="reject")
    runtime = start(config, listener=drops)
    with hold_encoder(runtime) as gate:
        show(runtime, "table", clip(1).frames(5))
        gate.open()
        settle(runtime)
    status = runtime.stream_status("table")
    assert stamps(runtime) == [0, 1]
    assert counters(status) == {"received": 5, "registered": 2, "dropped": 3}
    assert drops.heard == ["pending_full"] * 3


def test_max_fps(start: Start) -> None:
    runtime = start(StreamConfig("table", max_fps=10, max_pending_frames=64))
    frame = clip(1).frames(1)[0]
    for k in range(30):  # one second of a 30 Hz camera
        runtime.add_frame("table", frame, k, received_at=100 + k / 30)
    settle(runtime)
    status = runtime.stream_status("table")
    assert 10 <= status.frames_registered <= 11
    assert status.frames_received == 30 == status.frames_registered + status.frames_skipped
    state = runtime._loaded().streams["table"]
    assert state.status(101.0).frame_rate_hz == pytest.approx(30)


def test_the_change_gate_skips_frames_that_are_the_same(start: Start) -> None:
    runtime = start(StreamConfig("table", change_threshold=20))
    dark, light = (np.full((48, 64, 3), value, np.uint8) for value in (40, 200))
    show(runtime, "table", [dark, dark, light, light, dark])
    settle(runtime)
    assert stamps(runtime) == [0, 2, 4]
    assert counters(runtime.stream_status("table")) == {
        "received": 5,
        "registered": 3,
        "skipped": 2,
    }
    runtime.reset("table")
    show(runtime, "table", [dark])
    settle(runtime)
    assert runtime.stream_status("table").frames == 1, "a reset forgets the last frame"


def test_a_change_that_was_refused_is_seen_later(start: Start) -> None:
    """The gate compares with what the history holds, not with a frame that it never got."""
    config = StreamConfig(
        "table", change_threshold=20, max_pending_frames=1, pending_policy="reject"
    )
    runtime = start(config)
    dark, light = (np.full((48, 64, 3), value, np.uint8) for value in (40, 200))
    with hold_encoder(runtime) as gate:
        show(runtime, "table", [dark, light])
        gate.open()
        settle(runtime)
    show(runtime, "table", [light], 2)
    settle(runtime)
    assert stamps(runtime) == [0, 2]


def test_identical_frames_are_encoded_once(start: Start) -> None:
    runtime = start("table", "shelf")
    frames = clip(1).frames(2)
    show(runtime, "table", [frames[0], frames[0], frames[1]])
    settle(runtime)
    show(runtime, "shelf", frames)
    settle(runtime)
    cache = runtime.vision_status().cache
    assert (cache.misses, cache.hits, cache.entries, cache.pinned_entries) == (2, 3, 2, 2)
    texts = [answered(runtime.ask(name, "Describe the scene.")) for name in ("table", "shelf")]
    assert texts[0] == texts[1]
    runtime.reset("table")
    runtime.reset("shelf")
    assert_released(runtime)
    show(runtime, "table", frames)
    settle(runtime)
    assert runtime.vision_status().cache.misses == 2, "kept within the limits after the reset"


def test_a_cache_without_room_keeps_what_is_needed(start: Start) -> None:
    runtime = start(vision=VisionConfig(cache_entries=0, cache_bytes=0))
    frames = clip(1).frames(15)
    show(runtime, "table", frames[:12])
    settle(runtime)
    show(runtime, "table", frames[12:], 12)  # rebuilt: the kept frames are computed again
    assert runtime.ask("table", "Describe the scene.").result(PATIENCE_S).error == ""
    assert_released(runtime)
    status = runtime.vision_status()
    assert (
        status.cache.entries == status.cache.pinned_entries == runtime.stream_status("table").frames
    )
    assert status.cache.misses == 15


def test_invalid_frames_are_counted(runtime: Runtime) -> None:
    runtime.note_invalid_frame("table")
    show(runtime, "table", clip(1).frames(1))
    settle(runtime)
    status = runtime.stream_status("table")
    assert counters(status) == {"received": 2, "registered": 1, "invalid": 1}
    assert status.frame_age_s >= 0 and status.encode_ms > 0 and status.ingest_ms > 0


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_what_is_no_frame_is_refused_at_the_door(runtime: Runtime, frame: object) -> None:
    with pytest.raises(ValueError, match="uint8"):
        runtime.add_frame("table", frame, 0)  # type: ignore[arg-type]
    assert counters(runtime.stream_status("table")) == {}


def test_unknown_streams(runtime: Runtime) -> None:
    frame = clip(1).frames(1)[0]
    for call in (
        lambda: runtime.add_frame("shelf", frame, 0),
        lambda: runtime.note_invalid_frame("shelf"),
        lambda: runtime.reset("shelf"),
        lambda: runtime.describe("shelf"),
        lambda: runtime.stream_status("shelf"),
    ):
        with pytest.raises(UnknownStreamError, match="no stream 'shelf'; there are: table"):
            call()


def test_frames_from_many_threads(start: Start) -> None:
    names = ("table", "shelf")
    runtime = start(*names)
    # Different ones: streams that show the same in the same order share cells.
    frames = {name: clip(seed).frames(4) for seed, name in enumerate(names, 1)}
    per_thread = 40

    def film(name: str, camera: int) -> None:
        for k in range(per_thread):
            runtime.add_frame(name, frames[name][k % 4], camera * 1000 + k)

    threads = [
        threading.Thread(target=film, args=(name, camera)) for name in names for camera in (1, 2)
    ]
    for thread in threads:
        thread.start()
    questions = [runtime.ask(name, "Describe the scene.") for name in names for _ in range(2)]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert all(answer.result(PATIENCE_S).error == "" for answer in questions)
    assert_released(runtime)
    for name in names:
        status = runtime.stream_status(name)
        assert status.frames_received == 2 * per_thread
        assert status.frames_failed == status.frames_skipped == status.frames_invalid == 0
        current = runtime._loaded().streams[name].history.current
        shown = [frame.stamp_ns for frame in current.frames(len(current))]
        for camera in (1, 2):  # each camera's own order is kept
            own = [stamp for stamp in shown if stamp // 1000 == camera]
            assert own == sorted(own)


def test_counters_add_up(start: Start) -> None:
    """received = registered + skipped + invalid + refused, with every gate at work."""
    drops = Drops()
    config = StreamConfig("table", max_fps=20, change_threshold=3, max_pending_frames=2)
    runtime = start(config, listener=drops)
    with hold_encoder(runtime) as gate:
        frames = clip(1).frames(8) + clip(5).frames(8)
        for k in range(60):
            frame = frames[k * 7 % 16]
            runtime.add_frame("table", frame, k, received_at=5 + k / 30)
            if k % 10 == 0:
                runtime.note_invalid_frame("table")
            if k == 30:
                gate.open()
        settle(runtime)
    status = runtime.stream_status("table")
    refused = drops.heard.count("pending_full") + drops.heard.count("history_full")
    replaced = drops.heard.count("pending_replaced")
    assert status.frames_dropped == refused + replaced > 0
    assert status.frames_invalid == 6 and status.frames_skipped > 0
    assert status.frames_received == 66
    assert status.frames_received == (
        status.frames_registered
        + status.frames_skipped
        + status.frames_invalid
        + status.frames_dropped
    )
    assert_released(runtime)


def test_inactive_streams_take_no_frames(runtime: Runtime) -> None:
    runtime.deactivate(PATIENCE_S)
    with pytest.raises(NotActiveError, match="activate"):
        runtime.add_frame("table", clip(1).frames(1)[0], 0)
    assert counters(runtime.stream_status("table")) == {}


def test_invalid_messages_are_arrivals_too(runtime: Runtime) -> None:
    """A camera that sends rubbish is not silent."""
    assert runtime.stream_status("table").frame_age_s == -1
    runtime.note_invalid_frame("table")
    status = runtime.stream_status("table")
    assert (status.frames_received, status.frames_invalid) == (1, 1)
    assert status.frame_age_s >= 0


def test_the_frame_rate_goes_down_when_the_camera_stops(runtime: Runtime) -> None:
    state = runtime._loaded().streams["table"]
    for k in range(11):
        state.note_invalid(100 + k / 10)
    assert state.status(101.05).frame_rate_hz == pytest.approx(10)
    assert state.status(111.0).frame_rate_hz < 1
