"""Engines with fewer cells than all histories need."""

from __future__ import annotations

import time
from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    clip,
    demo_config,
    engine_of,
    eventually,
    hold_ingestion,
    show,
)
from two_engines import QUESTION, ask

from edge_vlm_ros.runtime import (
    EngineConfig,
    FinishReason,
    HistoryConfig,
    PlacementConfig,
    QuestionLimits,
    RuntimeConfig,
)

TIGHT_QUESTIONS = QuestionLimits(
    max_question_tokens=32, default_max_tokens=48, max_answer_tokens=48
)
TIGHT_HISTORY = HistoryConfig(max_frames=4, max_turns=0)


def tight_config(n_trunks: float, **settings: Any) -> RuntimeConfig:
    """Cells for ``n_trunks`` full histories and one answer."""
    cells = int(n_trunks * (3 + 4 * 52)) + 32 + 48
    engine = EngineConfig(name="cpu", n_threads=1, n_ctx=cells)
    return demo_config(
        "table",
        "shelf",
        "door",
        history=TIGHT_HISTORY,
        questions=TIGHT_QUESTIONS,
        engine=engine,
        **settings,
    )


def roomy_answers(start: Start, questions: list[tuple[str, int]]) -> list[tuple[int, ...]]:
    runtime = start("table", "shelf", "door", history=TIGHT_HISTORY, questions=TIGHT_QUESTIONS)
    return [
        (show(runtime, stream, clip(seed).frames(4)), ask(runtime, stream).token_ids)[1]
        for stream, seed in questions
    ]


@pytest.mark.parametrize("snapshot_bytes", [0, 1 << 20])
def test_histories_take_turns_on_an_engine_that_holds_one(
    start: Start, snapshot_bytes: int
) -> None:
    streams = [("table", 1), ("shelf", 2), ("door", 3)]
    expected = roomy_answers(start, streams)
    placement = PlacementConfig(snapshot_bytes=snapshot_bytes)
    runtime = start(config=tight_config(1.0, placement=placement))
    for stream, seed in streams:
        show(runtime, stream, clip(seed).frames(4))
    for _ in range(2):
        for (stream, _), token_ids in zip(streams, expected, strict=True):
            assert ask(runtime, stream).token_ids == token_ids
    status = runtime.placement_status()
    assert status.evicted_trunks >= 4  # llama.cpp rounds n_ctx up: two of the three fit
    assert status.snapshot_bytes <= snapshot_bytes
    assert (status.paths["import"] > 0) == (snapshot_bytes > 0)
    assert engine_of(runtime).status().cells_used <= engine_of(runtime).n_cells


def test_questions_about_more_than_fits_all_get_their_answers(start: Start) -> None:
    streams = [("table", 1), ("shelf", 2), ("door", 3)]
    expected = dict(zip((s for s, _ in streams), roomy_answers(start, streams), strict=True))
    runtime = start(config=tight_config(1.5))
    for stream, seed in streams:
        show(runtime, stream, clip(seed).frames(4))
    asked = [runtime.ask(s, QUESTION) for _ in range(2) for s in ("table", "shelf", "door")]
    for answer in asked:
        result = answer.result(PATIENCE_S)
        assert not result.error and result.token_ids == expected[answer.stream]


def test_frames_are_published_when_the_other_camera_has_been_idle(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vlm_ros.placement.cell_budget.IDLE_S", 0.3)
    runtime = start(config=tight_config(1.0))
    for stream, seed in (("table", 1), ("shelf", 2), ("door", 3)):
        show(runtime, stream, clip(seed).frames(4))
    for stream in ("table", "shelf", "door"):
        eventually(lambda name=stream: runtime.stream_status(name).published.n == 5, stream)
    evicted = runtime.placement_status().evicted_trunks
    runtime._on_loop(runtime._loaded()._ingest_all)  # as after any change of the engines
    time.sleep(1.0)  # three times as long as it takes to become idle
    assert runtime.placement_status().evicted_trunks == evicted, "they displace each other for ever"


def test_a_cancelled_question_gives_its_room_to_the_next(start: Start) -> None:
    runtime = start(config=tight_config(1.0))
    for stream, seed in (("table", 1), ("shelf", 2)):
        show(runtime, stream, clip(seed).frames(4))
    with hold_ingestion(runtime) as gate:
        first = runtime.ask("table", QUESTION)
        second = runtime.ask("shelf", QUESTION)
        gate.wait_until_reached()
        first.cancel()
        gate.open()
        assert second.result(PATIENCE_S).finish_reason is FinishReason.STOP
    assert first.result(PATIENCE_S).finish_reason is FinishReason.CANCELLED
    assert runtime.question_status().pending == 0
