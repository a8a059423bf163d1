"""Reads everything once a second: limits hold at every moment, memory does not grow."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from edge_vlm_ros.runtime import Runtime
from edge_vlm_ros.runtime.status import StreamStatus

MIB = 2**20
MAX_GROWTH = 0.02


class MemoryReading(NamedTuple):
    """Bytes by engine: those of the process that holds the engine."""

    seconds: float
    pss: tuple[int, ...]
    rss: tuple[int, ...]


@dataclass(frozen=True)
class Growth:
    """Memory of the process of one engine, in bytes: medians of the second and of the last fifth of
    the time. The first fifth is the warm-up."""

    engine: str
    pss_before: float
    pss_after: float
    rss_before: float
    rss_after: float

    @property
    def bytes(self) -> float:
        """By how much the process has grown. When another process ends that had mapped the same
        libraries or weights, PSS grows and RSS does not; a leak grows both."""
        return min(self.pss_after - self.pss_before, self.rss_after - self.rss_before)

    @property
    def share(self) -> float:
        return self.bytes / self.pss_before

    def is_too_much(self, floor_bytes: int) -> bool:
        """More than 2 % of PSS, and more than ``floor_bytes``."""
        return self.bytes > max(MAX_GROWTH * self.pss_before, floor_bytes)


def growths(engines: Sequence[str], readings: Sequence[MemoryReading]) -> list[Growth]:
    """For each engine. Raises ValueError for fewer than five readings."""
    fifth = len(readings) // 5
    if not fifth:
        raise ValueError(f"{len(readings)} readings of memory are too few: soak longer")
    early, late = readings[fifth : 2 * fifth], readings[-fifth:]
    return [
        Growth(
            name,
            median(r.pss[k] for r in early),
            median(r.pss[k] for r in late),
            median(r.rss[k] for r in early),
            median(r.rss[k] for r in late),
        )
        for k, name in enumerate(engines)
    ]


class Watch:
    """``complain`` hears once of each limit that does not hold."""

    def __init__(self, runtime: Runtime, complain: Callable[[str], None]) -> None:
        self._runtime, self._complain = runtime, complain
        self._complained: Counter[str] = Counter()
        self._began = time.monotonic()
        self.memory: list[MemoryReading] = []
        self.most_pending_frames = self.most_questions = 0
        self.most_snapshot_bytes = 0

    def read(self) -> None:
        self._questions()
        for name in self._runtime.stream_names:
            self._frames(self._runtime.stream_status(name))
        self._placement()
        self._embeddings()
        engines = self._runtime.engine_status()
        for engine in engines:
            used, cells = engine.status.cells_used, engine.status.cells
            self._expect("cells", used <= cells, f"{engine.status.name}: {used} of {cells}")
        pss = tuple(engine.memory_pss_bytes for engine in engines)
        rss = tuple(engine.memory_rss_bytes for engine in engines)
        self.memory.append(MemoryReading(time.monotonic() - self._began, pss, rss))

    def _expect(self, what: str, holds: bool, text: str) -> None:
        if not holds:
            self._complained[what] += 1
            if self._complained[what] == 1:
                self._complain(f"{what}: {text}")

    def _questions(self) -> None:
        status = self._runtime.question_status()
        ended = sum(status.finished.values())
        self._expect(
            "questions add up",
            status.accepted == ended + status.pending,
            f"{status.accepted} accepted, {ended} ended, {status.pending} pending",
        )
        self._expect("pending questions", status.pending <= status.max_pending, f"{status}")
        self.most_questions = max(self.most_questions, status.pending)

    def _frames(self, status: StreamStatus) -> None:
        standby = frames_unaccounted(status)
        self._expect("frames add up", standby in (0, 1), f"{status}")
        # A question may have the frame that stands by registered beyond the limit.
        limit = 2 * status.max_pending_frames
        self._expect("pending frames", status.pending_frames <= limit, f"{status}")
        self._expect("history", status.tokens <= status.max_tokens, f"{status}")
        self.most_pending_frames = max(self.most_pending_frames, status.pending_frames)

    def _placement(self) -> None:
        status = self._runtime.placement_status()
        within = (
            status.snapshot_bytes <= status.max_snapshot_bytes
            and status.snapshot_entries <= status.max_snapshot_entries
            and status.prefix_entries <= status.max_prefix_entries
        )
        self._expect("snapshots and prefixes", within, f"{status}")
        self._expect("imports", status.failed_imports == 0, f"{status.failed_imports} failed")
        self.most_snapshot_bytes = max(self.most_snapshot_bytes, status.snapshot_bytes)

    def _embeddings(self) -> None:
        status = self._runtime.vision_status()
        cache = status.cache
        fits = cache.entries <= status.max_entries or cache.entries == cache.pinned_entries
        self._expect("embeddings", fits, f"{status}")
        pending = sum(
            self._runtime.stream_status(name).max_pending_frames * 2
            for name in self._runtime.stream_names
        )
        self._expect("encoder's queue", status.queue_length <= pending, f"{status}")


def frames_unaccounted(status: StreamStatus) -> int:
    """Frames received and neither registered nor dropped, skipped or invalid: one may stand by."""
    return status.frames_received - (
        status.frames_registered
        + status.frames_dropped
        + status.frames_skipped
        + status.frames_invalid
    )
