"""Levels and texts of /diagnostics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from status_samples import ENGINE, PLACEMENT, PLANNING, QUESTIONS, READING, STREAM, VISION

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
    placement_report,
    planning_report,
    stream_report,
    to_message,
)
from edge_vlm_ros.ros.throttle import Throttle
from edge_vlm_ros.runtime.status import PairProbe, PredictionError
from edge_vlm_ros.vision.embedding_cache import CacheStats

BEFORE = FrameCounts.of(STREAM)
CAMERA = CameraState("/table/image_raw", watched_s=60.0, silent_timeout_s=3.0)
ACTIVE = NodeState("active", "demo", loading="", configure_error="", callback_errors=0)


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


def test_an_engine_that_works() -> None:
    ok = engine_report(READING, 0.25)
    assert (ok.component, ok.level) == ("engine cpu", Level.OK)
    assert ok.message == "ready, 0 answers running, 25 % busy"
    assert ok.values["busy"] == "25 %" and ok.values["holds"] == "table"
    assert ok.values["cells"] == "10 used, 0 reserved, of 1000"
    assert ok.values["exported"] == "3.0 MiB at 50 MiB/s"
    assert ok.values["process"] == "RSS 2.0 MiB, PSS 1.0 MiB"
    crowded = engine_report(replace(READING, status=replace(ENGINE, waiting_answers=2)), 0.0)
    assert crowded.level is Level.OK and "2 waiting for room" in crowded.message


@pytest.mark.parametrize(
    ("changes", "level", "message"),
    [
        (
            {"state": "failed", "error": "server lost", "retry_in_s": 3.25},
            Level.ERROR,
            "failed: server lost; started again in 3.2 s",
        ),
        (
            {"state": "failed", "error": "server lost"},
            Level.ERROR,
            "failed: server lost; not started again",
        ),
        (
            {"state": "starting", "error": "server lost"},
            Level.WARN,
            "starting after it failed: server lost",
        ),
        ({"state": "starting"}, Level.WARN, "starting"),
    ],
)
def test_an_engine_that_does_not(changes: dict[str, Any], level: Level, message: str) -> None:
    report = engine_report(replace(READING, **changes), 0.0)
    assert (report.level, report.message) == (level, message)


def test_the_placement_tells_budgets_and_the_compatibility_of_engines() -> None:
    ok = placement_report(PLACEMENT)
    assert (ok.component, ok.level) == ("placement", Level.OK)
    assert ok.message == "questions: 3 local, 2 import, 0 replay"
    assert ok.values["snapshots"] == "6 of 64"
    assert ok.values["snapshot memory"] == "2.0 MiB of 256.0 MiB"
    assert ok.values["snapshot hits"] == "1 of 9" and ok.values["prefix hits"] == "0 of 0"
    assert ok.values["evicted trunks"] == "5" and ok.values["failovers"] == "4"
    assert ok.values["imports"] == "1 full, 7 delta"
    assert ok.values["cpu -> second"] == "equal" and ok.values["second -> cpu"] == "close: q4"


def test_incompatible_engines_are_warned_of_by_name() -> None:
    probes = (*PLACEMENT.probes, PairProbe("cpu", "gpu", "incompatible", "kv_type f16, not q8_0"))
    report = placement_report(replace(PLACEMENT, probes=probes))
    assert report.level is Level.WARN
    assert report.message == "KV cannot be moved cpu -> gpu: replay is used"
    assert report.values["cpu -> gpu"] == "incompatible: kv_type f16, not q8_0"


def test_the_planning_tells_policy_shares_and_how_well_times_are_foreseen() -> None:
    ok = planning_report(PLANNING)
    assert (ok.component, ok.level, ok.message) == ("planning", Level.OK, "sdep, 40 decisions")
    assert ok.values["objective"] == "first token" and ok.values["questions"] == "6.0 a minute"
    assert ok.values["load"] == "sustained: shares are used"
    assert ok.values["time of a decision"] == "120 us, at most 900 us"
    assert ok.values["questions to second"] == "50 %, share 25 %, utilisation 120 %"
    assert ok.values["predicted first token"] == "off by a factor of 1.25 (median of 20)"
    assert ok.values["cost of decode on cpu"] == "off by a factor of 1.12, 64 steps"
    assert ok.values["cost of encode on onnx"] == "off by a factor of 3.00, 9 steps"
    fresh = planning_report(replace(PLANNING, sustained_load=False, finished=PredictionError()))
    assert fresh.values["predicted end"] == "no questions yet" and fresh.values["load"] == "light"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"finished": PredictionError(20, 1.5)},
            "predictions are off: end by a factor of 2.5 (median)",
        ),
        (
            {"first_token": PredictionError(30, 2.0), "finished": PredictionError(30, 3.0)},
            "predictions are off: first token by a factor of 3.0, end by a factor of 4.0 (median)",
        ),
        ({"finished": PredictionError(19, 9.0)}, None),
        ({"finished": PredictionError(99, 1.0)}, None),
    ],
)
def test_bad_predictions_are_warned_of_when_there_are_many(
    changes: dict[str, Any], message: str | None
) -> None:
    report = planning_report(replace(PLANNING, **changes))
    if message is None:
        assert report.level is Level.OK
    else:
        assert (report.level, report.message) == (Level.WARN, message)


def test_the_encoder_and_the_cache() -> None:
    assert encoder_report(VISION).level is Level.OK
    second = encoder_report(replace(VISION, refused=("encoder rknn is not used: no driver",)))
    assert second.level is Level.WARN and "ONNX Runtime instead" in second.message
    assert "no driver" in second.message and second.values["not used"].endswith("no driver")
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
