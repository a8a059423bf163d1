"""Runs a soak and judges it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from edge_vlm_ros.runtime import Runtime
from edge_vlm_ros.runtime.status import CostError

from .ledger import Ledger, different_answers
from .load import N_ASKERS, RATE_HZ, STREAMS, Asker, Camera, Mover, Player, Scenery, soak_config
from .settled import check_frames, check_nothing_is_held, settle
from .watch import MIB, Growth, Watch, growths

_SHORT_S = 600.0
_SHORT_FLOOR_BYTES = 2 * MIB
"""Within minutes memory is not quite at rest: a process is allowed this much of growth."""
_JOIN_S = 120.0


@dataclass(frozen=True)
class SoakResult:
    """``violations`` is empty when all is well."""

    violations: tuple[str, ...]
    growths: tuple[Growth, ...]
    answers: int
    samples: int
    ways: Counter[str]
    refused: Counter[str]
    costs: tuple[CostError, ...]


class Soak:
    """Two cameras, ``N_ASKERS`` askers and a mover on one runtime for ``seconds``."""

    def __init__(
        self, seconds: float, seed: int = 1, report: Callable[[str], None] = print
    ) -> None:
        self._seconds, self._seed, self._report = seconds, seed, report
        self._violations: list[str] = []
        self._ledger = Ledger(max(20, int(seconds / 10)), seed, self._complain)
        self._scenery = Scenery.draw(seed)

    def run(self) -> SoakResult:
        runtime = Runtime(soak_config(), self._ledger)
        runtime.load()
        self._ledger.runtime = runtime
        try:
            runtime.activate()
            watch = Watch(runtime, self._complain)
            cameras, askers = self._play(runtime, watch)
            costs = runtime.planning_status().costs
            self._check_end(runtime, cameras, askers)
        finally:
            runtime.close()
        names = [engine.name for engine in runtime.config.engines]
        grown = growths(names, watch.memory)
        self._judge_memory(grown)
        for difference in different_answers(self._ledger.samples, self._scenery):
            self._complain(f"not the plain loop's: {difference}")
        return SoakResult(
            tuple(self._violations),
            tuple(grown),
            self._ledger.ended,
            len(self._ledger.samples),
            sum((asker.ways for asker in askers), Counter()),
            sum((asker.refused for asker in askers), Counter()),
            costs,
        )

    def _complain(self, text: str) -> None:
        self._violations.append(text)
        self._report(f"VIOLATION: {text}")

    def _play(self, runtime: Runtime, watch: Watch) -> tuple[list[Camera], list[Asker]]:
        complain, scenery = self._complain, self._scenery
        cameras = [Camera(runtime, stream, scenery, complain) for stream in STREAMS]
        seeds = range(1000 * self._seed, 1000 * self._seed + N_ASKERS)
        askers = [Asker(runtime, seed, scenery, complain) for seed in seeds]
        players: list[Player] = [*cameras, *askers, Mover(runtime, self._seed, complain)]
        for player in players:
            player.start()
        self._watch(runtime, watch, self._seconds)
        for player in players:
            player.stop()
        for player in players:
            player.join(_JOIN_S)
            if player.is_alive():
                self._complain(f"{player.name} does not stop")
        return cameras, askers

    def _watch(self, runtime: Runtime, watch: Watch, seconds: float) -> None:
        began = time.monotonic()
        end = began + seconds
        next_report = 60.0
        tick = threading.Event()
        while (now := time.monotonic()) < end:
            watch.read()
            if now - began >= next_report or now + 1.0 >= end:
                self._report(self._line(runtime, watch))
                next_report += 60.0
            tick.wait(max(0.0, 1.0 - (time.monotonic() - now)))

    def _line(self, runtime: Runtime, watch: Watch) -> str:
        last = watch.memory[-1]
        placement = runtime.placement_status()
        streams = [runtime.stream_status(name) for name in STREAMS]
        names = [engine.name for engine in runtime.config.engines]
        memory = ", ".join(
            f"{name} {pss / MIB:.1f} ({rss / MIB:.1f})"
            for name, pss, rss in zip(names, last.pss, last.rss, strict=True)
        )
        return (
            f"{last.seconds / 60:5.1f} min: {self._ledger.ended} answers "
            f"({', '.join(f'{path} {n}' for path, n in placement.paths.items())}, "
            f"handoffs {placement.handoffs}), frames {sum(s.frames_received for s in streams)} "
            f"received {sum(s.frames_registered for s in streams)} registered, "
            f"evicted {placement.evicted_trunks}, PSS (RSS) {memory} MiB"
        )

    def _check_end(self, runtime: Runtime, cameras: list[Camera], askers: list[Asker]) -> None:
        settle(runtime, self._complain)
        sent = {stream: camera.sent for stream, camera in zip(STREAMS, cameras, strict=True)}
        check_frames(runtime, sent, self._complain)
        check_nothing_is_held(runtime, self._complain)
        status, ledger = runtime.question_status(), self._ledger
        counts = (
            status.accepted,
            sum(status.finished.values()),
            ledger.accepted,
            ledger.ended,
            sum(asker.results for asker in askers),
        )
        if len(set(counts)) != 1 or ledger.open or status.pending:
            self._complain(
                f"questions accepted, finished, heard of, ended, received: {counts}; without an "
                f"end: {sorted(ledger.open)}"
            )
        unexpected = set(status.rejected) - {"queue_full", "no_frames", "bad_binding"}
        if unexpected:
            self._complain(f"questions were rejected for {sorted(unexpected)}")

    def _judge_memory(self, grown: list[Growth]) -> None:
        floor = _SHORT_FLOOR_BYTES if self._seconds < _SHORT_S else 0
        for growth in grown:
            if growth.is_too_much(floor):
                self._complain(f"memory grew: {growth}")


def describe(seconds: float) -> str:
    return (
        f"{len(STREAMS)} cameras at {RATE_HZ:.0f} Hz, {N_ASKERS} askers, {seconds / 60:.0f} minutes"
    )
