"""Carries out one workload under one policy, in a Runtime of its own over models that stay."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from unittest import mock

import numpy as np
import psutil

import edge_vlm_ros.runtime.runtime as runtime_module
from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.memory import process_memory
from edge_vlm_ros.history import Version
from edge_vlm_ros.model_profile import ModelProfile, sha256_file
from edge_vlm_ros.planning.plan import Objective
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AskOptions,
    FinishReason,
    HistoryConfig,
    PlanningConfig,
    QuestionLimits,
    QuestionRejected,
    Runtime,
    RuntimeConfig,
    RuntimeListener,
    StreamConfig,
    VisionConfig,
)
from edge_vlm_ros.runtime.engine_maker import EngineMaker
from edge_vlm_ros.simulation.workload import Asked, Frame, Workload

from .policies_results import Key, Memory, Run

MAX_FRAMES, KEEP_FRAMES = 24, 12
MOST_TOKENS = 128
"""Of an answer."""
MAX_PENDING = 48
_PATIENCE_S = 300.0


class Models(EngineMaker):
    """Models that stay loaded from one Runtime to the next, on their devices. Nothing else stays:
    contexts, KV, caches, rates and what was learnt are made anew."""

    def __init__(self, profile: ModelProfile, engines: Sequence[EngineConfig]) -> None:
        super().__init__(profile, engines, lambda fraction: None)

    def close(self) -> None:
        """A Runtime calls this; ``free`` is for the end."""

    def free(self) -> None:
        super().close()


def with_digest(profile: ModelProfile) -> ModelProfile:
    """So that gigabytes are read once and not for every Runtime."""
    digest = sha256_file(profile.language.file)
    language = profile.language.model_copy(update={"sha256": digest})
    return profile.model_copy(update={"language": language})


@dataclass(frozen=True)
class Settings:
    """Of all runs. ``cpus`` are for everything but engines; none: no core is kept for them."""

    profile: ModelProfile
    streams: tuple[str, ...]
    cpus: tuple[int, ...]
    objective: Objective

    def config(self, engines: Sequence[EngineConfig], policy: str) -> RuntimeConfig:
        history = HistoryConfig(max_frames=MAX_FRAMES, keep_frames=KEEP_FRAMES, max_turns=0)
        return RuntimeConfig(
            self.profile,
            tuple(StreamConfig(name, history, max_pending_frames=8) for name in self.streams),
            tuple(engines),
            QuestionLimits(
                max_pending=MAX_PENDING,
                max_question_tokens=32,
                default_max_tokens=MOST_TOKENS,
                max_answer_tokens=MOST_TOKENS,
            ),
            VisionConfig(cache_entries=0, cache_bytes=0),  # every frame is encoded
            planning=PlanningConfig(
                policy=policy,
                objective=self.objective,
                calibration="auto" if len(engines) > 1 else "never",  # one engine: no choice
            ),
        )


class Witness(RuntimeListener):
    """Knows when frames can be asked about and when the last answer ended."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._published: dict[str, int] = {}
        self.last_end = 0.0

    def version_published(self, version: Version) -> None:
        with self._changed:
            self._published[version.stream] = version.n
            self._changed.notify_all()

    def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
        self.last_end = time.monotonic()

    def wait_for(self, stream: str, n: int) -> None:
        """Until version ``n`` of a stream can be asked about. Raises TimeoutError."""
        with self._changed:
            there = self._changed.wait_for(lambda: self._published.get(stream, 0) >= n, _PATIENCE_S)
        if not there:
            raise TimeoutError(
                f"version {n} of stream {stream} was not computed in {_PATIENCE_S} s"
            )


@contextmanager
def pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Keep this thread to some cores, and so the threads that it starts."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(
    settings: Settings, engines: Sequence[EngineConfig], policy: str, models: Models
) -> Iterator[tuple[Runtime, Witness]]:
    """A fresh Runtime, ready for frames."""
    gc.collect()  # what the run before has left counts as memory of this one
    witness = Witness()
    runtime = Runtime(settings.config(engines, policy), witness)
    with (
        pinned(settings.cpus),
        mock.patch.object(runtime_module, "EngineMaker", lambda *given: models),
        mock.patch.object(runtime_module, "verify_files", lambda profile: None),  # read once
    ):
        try:
            runtime.load()
            runtime.activate()
            yield runtime, witness
        finally:
            runtime.close()


class _Question(NamedTuple):
    """``late_s`` after it came it was asked, and ``tokens`` were to be generated."""

    answer: Answer
    late_s: float
    tokens: int


class Carrier:
    """Brings a workload to a Runtime: as it comes, or ``strictly`` one thing after another."""

    def __init__(self, runtime: Runtime, witness: Witness, workload: Workload) -> None:
        self._runtime, self._witness, self._workload = runtime, witness, workload
        height, width = runtime.config.profile.encoder.size
        rng = np.random.default_rng()  # no frame is like one seen before
        self._pictures = rng.integers(
            0, 256, (len(workload.frames), height, width, 3), dtype=np.uint8
        )
        self._shown: Counter[str] = Counter()
        # What a history begins with comes before the frames.
        self._first_n = {s: runtime.stream_status(s).registered.n for s in workload.streams}
        self._asked: list[_Question] = []
        self._rejected = self._unfinished = 0
        self._busy_before = self._busy()
        self.began = 0.0

    def carry(self, key: Key, grace_s: float, *, strictly: bool = False) -> Run:
        """``grace_s`` after the last item, answers that have not ended are cancelled; 0: never."""
        self.began = time.monotonic()
        for item in self._workload.items:
            time.sleep(max(0.0, self.began + item.at - time.monotonic()))
            if isinstance(item, Frame):
                self._show(item.stream, strictly)
            else:
                self._ask(item, strictly)
        if grace_s:
            self._end_at(self.began + self._workload.duration_s + grace_s)
        return self._run(key, [asked.answer.result(_PATIENCE_S) for asked in self._asked])

    def show_all(self) -> None:
        """All frames, until the last can be asked about."""
        for frame in self._workload.frames:
            self._show(frame.stream, strictly=False)
        for stream in self._shown:
            self._wait_for_last(stream)

    def _show(self, stream: str, strictly: bool) -> None:
        picture = self._pictures[self._shown.total()]
        self._shown[stream] += 1
        self._runtime.add_frame(stream, picture, stamp_ns=self._shown[stream])
        if strictly:
            self._wait_for_last(stream)

    def _wait_for_last(self, stream: str) -> None:
        self._witness.wait_for(stream, self._first_n[stream] + self._shown[stream])

    def _ask(self, item: Asked, strictly: bool) -> None:
        # Lengths are drawn; the model would not end by itself.
        tokens = min(item.answer_tokens, item.max_tokens)
        text, late = f"{item.number}: what changed?", time.monotonic() - self.began - item.at
        try:
            answer = self._runtime.ask(item.stream, text, AskOptions(max_tokens=tokens))
        except QuestionRejected:
            self._rejected += 1
            return
        self._asked.append(_Question(answer, late, tokens))
        if strictly:
            answer.result(_PATIENCE_S)

    def _end_at(self, end: float) -> None:
        while time.monotonic() < end and self._runtime.question_status().pending:
            time.sleep(0.02)
        for asked in self._asked:
            asked.answer.cancel()  # of no effect on those that have ended

    def _run(self, key: Key, results: Sequence[AnswerResult]) -> Run:
        first: list[float] = []
        complete: list[float] = []
        for asked, result in zip(self._asked, results, strict=True):
            n, cancelled = len(result.token_ids), result.finish_reason is FinishReason.CANCELLED
            self._unfinished += cancelled
            if not cancelled and (result.finish_reason, n) != (FinishReason.LENGTH, asked.tokens):
                raise RuntimeError(
                    f"an answer ended with {result.finish_reason.value} after {n} of "
                    f"{asked.tokens} tokens: {result.error}"
                )
            late_ms, metrics = 1e3 * asked.late_s, result.metrics
            first.append(late_ms + (metrics.ttft_ms or metrics.total_ms))
            if not cancelled:
                complete.append(late_ms + metrics.total_ms)
        return self._measured(key, results, first, complete)

    def _measured(
        self,
        key: Key,
        results: Sequence[AnswerResult],
        ttft_ms: Sequence[float],
        complete_ms: Sequence[float],
    ) -> Run:
        runtime, workload = self._runtime, self._workload
        placement, planning = runtime.placement_status(), runtime.planning_status()
        streams = [runtime.stream_status(name) for name in workload.streams]
        hits = sum(r.metrics.embedding_cache_hits for r in results[-1:])
        if hits:
            raise RuntimeError(f"{hits} frames were not encoded: they were in the cache")
        return Run(
            key=key,
            total_s=max(self._witness.last_end - self.began, 1e-6),
            tokens=sum(len(r.token_ids) for r in results),
            ttft_ms=tuple(ttft_ms),
            complete_ms=tuple(complete_ms),
            rejected=self._rejected,
            unfinished=self._unfinished,
            frames=sum(s.frames_registered for s in streams),
            frames_dropped=sum(s.frames_dropped for s in streams),
            answers=dict(Counter(r.metrics.engine for r in results)),
            paths=dict(placement.paths),
            full_imports=placement.full_imports,
            delta_imports=placement.delta_imports,
            replayed_tokens=placement.replayed_tokens,
            handoffs=placement.handoffs,
            imported_bytes=placement.imported_bytes,
            busy_s={n: s - self._busy_before[n] for n, s in self._busy().items()},
            ingest_engines={s.stream: s.ingest_engine for s in streams},
            memory=_memory(),
            decision_mean_us=planning.decision_mean_us,
            decision_max_us=planning.decision_max_us,
            first_token_error=planning.first_token.error,
            finished_error=planning.finished.error,
            question_rate_hz=len(workload.questions) / (workload.duration_s or 1.0),
            fps=len(workload.frames) / len(workload.streams) / (workload.duration_s or 1.0),
        )

    def _busy(self) -> dict[str, float]:
        return {r.status.name: r.status.busy_s for r in self._runtime.engine_status()}


def _memory() -> Memory:
    node = process_memory()
    servers = [
        process_memory(child.pid)
        for child in psutil.Process().children()
        if "edge_vlm_ros.engines.rpc_server" in child.cmdline()
    ]
    return Memory(
        node.rss_bytes,
        node.pss_bytes,
        sum(s.rss_bytes for s in servers),
        sum(s.pss_bytes for s in servers),
    )
