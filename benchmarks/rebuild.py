"""Time to the first token of a question when its history is full and the oldest frames are dropped.

A camera shows a frame every so often, and with each frame comes a question. The other side computes
nothing ahead, as an engine does that never has time for it: what is kept is computed again when the
frame comes that does not fit any more, and the question waits for all of it.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from edge_vlm_ros.demo.stream import TableStream
from edge_vlm_ros.runtime import AskOptions, HistoryConfig, Runtime, RuntimeConfig, StreamConfig

from .models import BenchmarkModel

QUESTION = "What changed?"
MAX_FRAMES, KEPT_FRAMES = 24, 12
REBUILDS = 4
FRAMES = MAX_FRAMES + (REBUILDS - 1) * (MAX_FRAMES - KEPT_FRAMES) + 1
PACE = 3.0
"""Seconds from frame to frame, in times that a frame and its question take."""

HEADER = (
    "| computed ahead | period, ms | other frames: median, ms | longest, ms "
    "| with rebuilds: median, ms | longest, ms | ratio of medians |\n|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class RebuildRow:
    """Milliseconds to first tokens, of questions with rebuilds and of all others."""

    ahead: bool
    period_ms: float
    other_ms: tuple[float, ...]
    rebuild_ms: tuple[float, ...]

    def row(self) -> str:
        other, rebuild = statistics.median(self.other_ms), statistics.median(self.rebuild_ms)
        return (
            f"| {'yes' if self.ahead else 'no'} | {self.period_ms:.0f} | {other:.1f} "
            f"| {max(self.other_ms):.1f} | {rebuild:.1f} | {max(self.rebuild_ms):.1f} "
            f"| **{rebuild / other:.1f}** |"
        )


def measure_rebuilds(model: BenchmarkModel) -> list[RebuildRow]:
    """The side that computes ahead, then the other one with the same frames at the same times."""
    first = _measure(model, None)
    return [first, _measure(model, first.period_ms)]


def _measure(model: BenchmarkModel, period_ms: float | None) -> RebuildRow:
    history = HistoryConfig(max_frames=MAX_FRAMES, keep_frames=KEPT_FRAMES)
    runtime = Runtime(RuntimeConfig(model.profile, (StreamConfig("camera", history),)))
    runtime.load()
    runtime.activate()
    ahead = period_ms is None
    if not ahead:
        runtime._loaded().streams["camera"].is_idle = lambda engine: False
    table = TableStream(7, width=224, height=224)
    other: list[float] = []
    rebuild: list[float] = []
    period_s, epoch = 0.0 if period_ms is None else period_ms / 1000.0, 0
    try:
        for k in range(FRAMES):
            due = time.perf_counter() + period_s
            runtime.add_frame("camera", table.frame(k), stamp_ns=k)
            result = runtime.ask("camera", QUESTION, AskOptions(max_tokens=1)).result()
            version = result.context.version
            (other if version.epoch == epoch else rebuild).append(result.metrics.ttft_ms)
            epoch = version.epoch
            if ahead and k < MAX_FRAMES // 2:  # as long as nothing is computed ahead
                period_s = PACE * max(other) / 1000.0
            time.sleep(max(0.0, due - time.perf_counter()))
    finally:
        runtime.close()
    return RebuildRow(ahead, 1000.0 * period_s, tuple(other), tuple(rebuild))
