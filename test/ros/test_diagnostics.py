"""Levels and texts of /diagnostics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.history import Version
from edge_vlm_ros.ros.diagnostics import (
    CameraState,
    FrameCounts,
    Level,
    NodeState,
    Report,
    caches_report,
    encoder_report,
    engine_report,
    node_report,
    stream_report,
    to_message,
)
from edge_vlm_ros.ros.throttle import Throttle
from edge_vlm_ros.runtime.status import QuestionStatus, StreamStatus, VisionStatus
from edge_vlm_ros.vision.embedding_cache import CacheStats
from edge_vlm_ros.vision.self_test import SelfTestResult

V = Version("table", 0, 3)
STREAM = StreamStatus(
    stream="table",
    registered=V,
    encoded=V,
    published=V,
    frames=2,
    turns=0,
    tokens=100,
    max_tokens=1000,
    pending_frames=0,
    max_pending_frames=10,
    frames_received=50,
    frames_registered=20,
    frames_dropped=4,
    frames_skipped=25,
    frames_invalid=3,
    frames_failed=1,
    frame_rate_hz=10.0,
    frame_age_s=0.1,
    register_ms=0.5,
    encode_ms=20.0,
    ingest_ms=30.0,
)
BEFORE = FrameCounts.of(STREAM)
CAMERA = CameraState("/table/image_raw", watched_s=60.0, silent_timeout_s=3.0)
QUESTIONS = QuestionStatus(
    pending=1, max_pending=10, accepted=5, rejected={"queue_full": 2}, finished={"stop": 4}
)
ACTIVE = NodeState("active", "demo", loading="", configure_error="", callback_errors=0)
VISION = VisionStatus(
    backend="ONNX Runtime",
    self_test=SelfTestResult(1.0, 0.0, True, "cosine 1.0"),
    n_tokens=49,
    n_embd=256,
    queue_length=0,
    cache=CacheStats(3, 1, 0, 4, 2**20, 0, 0, over_budget=False),
    max_entries=256,
    max_bytes=2**26,
)
ENGINE = EngineStatus(
    name="cpu",
    device="CPU",
    model="demo",
    state="ready",
    exact=True,
    cells=1000,
    cells_used=10,
    cells_reserved=0,
    trunks=1,
    running_answers=0,
    waiting_answers=0,
    prefill_tokens=0,
    ingest_tokens=0,
    generated_tokens=0,
    prefill_tok_s=0.0,
    decode_tok_s=0.0,
    busy_s=0.0,
    memory_weights_bytes=0,
    memory_kv_bytes=0,
)


def test_messages_are_named_as_in_rep_107() -> None:
    message = to_message(Report("engine cpu", Level.WARN, "slow", {"busy": "3 %"}), "edge_vlm", "r")
    assert (message.name, message.hardware_id, message.message) == (
        "edge_vlm: engine cpu",
        "r",
        "slow",
    )
    assert message.level == b"\x01"
    assert [(pair.key, pair.value) for pair in message.values] == [("busy", "3 %")]


# ------------------------------------------------------------------------- streams
def test_a_stream_that_works_is_ok_whatever_happened_before() -> None:
    report = stream_report(STREAM, BEFORE, CAMERA)
    assert (report.component, report.level) == ("stream table", Level.OK)
    assert report.values["encoding"] == "20.0 ms" and report.values["frame rate"] == "10.00 Hz"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"frames_dropped": 6}, "2 frames dropped"),
        ({"frames_invalid": 4}, "1 images not usable"),
        ({"frames_failed": 2}, "1 frames failed"),
        ({"pending_frames": 8}, "pending frames near the limit: 8 of 10"),
        ({"frame_age_s": 3.5}, "no frame for 3.5 s"),
        ({"frame_age_s": -1.0}, "no frame yet"),
    ],
)
def test_what_a_stream_is_warned_of(changes: dict[str, float], part: str) -> None:
    report = stream_report(replace(STREAM, **changes), BEFORE, CAMERA)
    assert report.level is Level.WARN and part in report.message


def test_several_problems_are_all_told() -> None:
    report = stream_report(
        replace(STREAM, frames_dropped=5, frame_age_s=9.0),
        BEFORE,
        replace(CAMERA, why_silent="nothing publishes it"),
    )
    assert report.message == "no frame for 9.0 s: nothing publishes it; 1 frames dropped"


@pytest.mark.parametrize("watched_s", [None, 1.0])
def test_silence_is_normal_while_inactive_and_just_after_activation(
    watched_s: float | None,
) -> None:
    silent = replace(STREAM, frame_age_s=-1.0)
    assert stream_report(silent, BEFORE, replace(CAMERA, watched_s=watched_s)).level is Level.OK


def test_just_below_the_limits_is_ok() -> None:
    status = replace(STREAM, pending_frames=7, frame_age_s=3.0)
    assert stream_report(status, BEFORE, CAMERA).level is Level.OK


# ------------------------------------------------------------------------- the rest
def test_the_node() -> None:
    ok = node_report(ACTIVE, QUESTIONS)
    assert (ok.level, ok.message) == (Level.OK, "active")
    assert ok.values["pending questions"] == "1 of 10"
    assert ok.values["rejected questions"] == "2" and ok.values["rejected for queue_full"] == "2"
    full = node_report(ACTIVE, replace(QUESTIONS, pending=8))
    assert full.level is Level.WARN and "8 of 10" in full.message
    failed = node_report(replace(ACTIVE, configure_error="no such file"), None)
    assert failed.level is Level.ERROR and "no such file" in failed.message
    loading = node_report(replace(ACTIVE, loading="model 40 %"), None)
    assert (loading.level, loading.message) == (Level.OK, "loading: model 40 %")
    assert node_report(replace(ACTIVE, callback_errors=1), QUESTIONS).level is Level.WARN


def test_engines() -> None:
    ok = engine_report(ENGINE, 0.25, "")
    assert (ok.component, ok.level) == ("engine cpu", Level.OK)
    assert ok.values["busy"] == "25 %"
    assert engine_report(replace(ENGINE, state="failed"), 0.0, "").level is Level.ERROR
    told = engine_report(ENGINE, 0.0, "out of memory")
    assert (told.level, told.message) == (Level.ERROR, "failed: out of memory")


def test_the_encoder_and_the_cache() -> None:
    assert encoder_report(VISION).level is Level.OK
    bad = replace(VISION, self_test=SelfTestResult(0.5, 1.0, False, "cosine 0.5"))
    assert encoder_report(bad).level is Level.WARN and "cosine 0.5" in encoder_report(bad).message
    ok = caches_report(VISION)
    assert ok.level is Level.OK and ok.values["hit rate"] == "75.0 %"
    over = replace(VISION, cache=CacheStats(0, 0, 0, 9, 2**27, 9, 2**27, over_budget=True))
    assert caches_report(over).level is Level.WARN


def test_a_throttle_lets_one_of_a_kind_through_and_counts_the_others() -> None:
    now = 0.0
    throttle = Throttle(period=lambda: 10.0, clock=lambda: now)
    assert throttle.passes("a") == 0
    assert throttle.passes("a") is None and throttle.passes("a") is None
    assert throttle.passes("b") == 0, "another kind"
    now = 10.0
    assert throttle.passes("a") == 2
    now = 20.0
    assert throttle.passes("a") == 0
