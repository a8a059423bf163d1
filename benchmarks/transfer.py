"""Getting a history onto an engine: import, replay, computing it again, and handing an answer over.

Everything goes through a Runtime, as a robot's questions do, without ROS in between: times to the
first token are those that the runtime reports, from the question's arrival on. What exporting and
importing take by themselves is read off at the engines (EngineCore), apart from all waiting.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from edge_vlm_ros.engines.config import KvType
from edge_vlm_ros.engines.core import EngineCore
from edge_vlm_ros.runtime import (
    AnswerResult,
    AskOptions,
    EngineConfig,
    FinishReason,
    HistoryConfig,
    PlacementConfig,
    PlanningConfig,
    QuestionLimits,
    Runtime,
    RuntimeConfig,
    StreamConfig,
    VersionBinding,
    VisionConfig,
)

from .models import BenchmarkModel
from .transfer_report import Case, Handoff, Moved, Round, Step, summary

QUESTION = "What changed?"
STREAM = "camera"
_WRAPPING = 3
"""Tokens around a frame in the demo model's format."""
_PATIENCE_S = 1800.0
REPLAY_ONCE_MS, REPLAY_NEVER_MS = 5_000.0, 40_000.0
"""Where computing all takes longer, replaying all is measured in the first round only, or never: it
is the same without the encoder."""


@dataclass(frozen=True)
class Plan:
    """What is measured. ``devices`` are two; both directions are. A round repeats what is quick
    ``repeats`` times. Each length and KV type gets its share of the ``seconds`` that are left, the
    longest first: rounds begin as long as it lasts, one at least, at most ``max_rounds``."""

    devices: tuple[str, str]
    kv_types: tuple[KvType, ...]
    lengths: tuple[int, ...]
    seconds: float
    n_threads: int = 0
    repeats: int = 3
    max_rounds: int = 5


def measure_transfer(
    model: BenchmarkModel, plan: Plan, tell: Callable[[str], None] = lambda _: None
) -> list[Case]:
    """Measure all cases; ``tell`` hears of the progress."""
    cases: list[Case] = []
    end = time.monotonic() + plan.seconds
    n_left = len(plan.kv_types) * len(plan.lengths)
    for kv_type in plan.kv_types:
        with _bench(model, plan, kv_type) as bench:
            for line in bench.engines():
                tell(line)
            for length in sorted(plan.lengths, reverse=True):
                began = time.monotonic()
                found = _measure_length(bench, plan, length, (end - began) / n_left)
                cases += found
                n_left -= 1
                for case in found:
                    tell(summary(case))
                tell(f"that took {time.monotonic() - began:.0f} s")
    return sorted(cases, key=lambda c: (plan.kv_types.index(c.kv_type), c.rounds[0].tokens))


def _measure_length(bench: _Bench, plan: Plan, length: int, share: float) -> list[Case]:
    """Both directions in turns, as many rounds as there is time for in ``share`` seconds."""
    a, b = bench.names
    rounds: dict[tuple[str, str], list[Round]] = {(a, b): [], (b, a): []}
    began = time.monotonic()
    for _ in range(plan.max_rounds):
        for (source, destination), found in rounds.items():
            found.append(bench.round(length, source, destination, plan.repeats, first=not found))
        if time.monotonic() - began > share:
            break
    return [Case(bench.kv_type, *key, tuple(found)) for key, found in rounds.items()]


# -------------------------------------------------------------------------------- the bench
@contextmanager
def _bench(model: BenchmarkModel, plan: Plan, kv_type: KvType) -> Iterator[_Bench]:
    config = _configuration(model, plan, kv_type)
    runtime = Runtime(config)
    steps: list[Step] = []
    with _noting(steps):
        runtime.load()
        try:
            runtime.activate()
            yield _Bench(runtime, steps)
        finally:
            runtime.close()


def _configuration(model: BenchmarkModel, plan: Plan, kv_type: KvType) -> RuntimeConfig:
    profile = model.profile
    most = 1 + _frames(max(plan.lengths), profile.encoder.n_tokens)
    engines = [_engine(device, plan.n_threads, kv_type) for device in plan.devices]
    stream = StreamConfig(
        STREAM,
        HistoryConfig(max_frames=most, keep_frames=1, max_turns=0, on_full="reject"),
        max_pending_frames=most,
        ingest_engine=engines[0].name,
    )
    return RuntimeConfig(
        profile,
        (stream,),
        tuple(engines),
        QuestionLimits(
            max_pending=2, max_question_tokens=32, default_max_tokens=1, max_answer_tokens=16
        ),
        # Nothing but the engines keeps KV, and only the history keeps embeddings.
        VisionConfig(n_threads=_encoder_threads(), cache_entries=0, cache_bytes=0),
        PlacementConfig(snapshot_entries=0, snapshot_bytes=0),
        PlanningConfig(policy=f"batched:{engines[0].name}", calibration="never"),
    )


def _encoder_threads() -> int:
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))


def _engine(device: str, n_threads: int, kv_type: KvType) -> EngineConfig:
    on_cpu = device.startswith(("cpu", "rpc"))
    name = re.sub(r"\W", "_", device)
    return EngineConfig(
        name=name, device=device, n_threads=n_threads if on_cpu else 1, kv_type=kv_type
    )


def _frames(tokens: int, n_embeddings: int) -> int:
    return max(2, round(tokens / (n_embeddings + _WRAPPING)))


@contextmanager
def _noting(steps: list[Step]) -> Iterator[None]:
    """Append every export and import to ``steps``."""
    export, import_ = EngineCore.export_snapshot, EngineCore.import_snapshot

    def noted_export(core: EngineCore, sequence: int, start: Any, stop: Any) -> Any:
        snapshot, seconds = export(core, sequence, start, stop)
        steps.append(Step("export", stop.tokens - start.tokens, snapshot.n_bytes, seconds))
        return snapshot, seconds

    def noted_import(core: EngineCore, sequence: int, snapshot: Any, start: Any, stop: Any) -> Any:
        seconds = import_(core, sequence, snapshot, start, stop)
        steps.append(Step("import", stop.tokens - start.tokens, snapshot.n_bytes, seconds))
        return seconds

    with (
        mock.patch.object(EngineCore, "export_snapshot", noted_export),
        mock.patch.object(EngineCore, "import_snapshot", noted_import),
    ):
        yield


class _Bench:
    """A runtime with two engines and one stream, nothing else going on."""

    def __init__(self, runtime: Runtime, steps: list[Step]) -> None:
        self._runtime = runtime
        self._steps = steps
        self._rng = np.random.default_rng(0)
        config = runtime.config
        self.kv_type = config.engines[0].kv_type
        self.names = tuple(engine.name for engine in config.engines)

    def engines(self) -> Iterator[str]:
        """What computes, a line for each."""
        for engine, reading in zip(
            self._runtime.config.engines, self._runtime.engine_status(), strict=True
        ):
            s = reading.status
            with_threads = f"{s.device}, threads: {engine.threads}"
            yield f"engine {s.name}: {with_threads}, {s.model}, KV cells: {s.cells}"
        for probe in self._runtime.placement_status().probes:
            yield f"{probe.source} -> {probe.destination}: {probe.outcome} {probe.detail}".rstrip()

    def round(
        self, length: int, source: str, destination: str, repeats: int, *, first: bool
    ) -> Round:
        """Everything once, on ``destination``; both hold the history in the end."""
        recomputed, recompute_ms = self._recompute(length, destination)
        tokens = recomputed.metrics.history_tokens
        n = recomputed.context.version.n
        self._ask(source, "import", imported=tokens)
        self._runtime.move_ingestion(STREAM, source)
        full, delta, replay_frame, local, handoff = [], [], [], [], []
        for _ in range(repeats):
            self._evict(destination)
            full.append(self._moved(destination, tokens))
            frame = self._go_back(destination, n - 1, tokens)
            delta.append(self._moved(destination, frame))
            self._go_back(destination, n - 1, tokens)
            replay_frame.append(self._ask(destination, "replay", replayed=frame).metrics.ttft_ms)
            local.append(self._ask(destination, "local").metrics.ttft_ms)
            handoff.append(self._hand_off(source, destination))
        replay = None
        if recompute_ms <= (REPLAY_NEVER_MS if first else REPLAY_ONCE_MS):
            self._evict(destination)
            replay = self._ask(destination, "replay", replayed=tokens).metrics.ttft_ms
        return Round(
            tokens=tokens,
            frames=recomputed.metrics.history_frames,
            local_ms=tuple(local),
            full=tuple(full),
            delta=tuple(delta),
            replay_frame_ms=tuple(replay_frame),
            replay_ms=replay,
            recompute_ms=recompute_ms,
            handoff=tuple(handoff),
            encode_ms=self._runtime.stream_status(STREAM).encode_ms,
        )

    def _recompute(self, length: int, engine: str) -> tuple[AnswerResult, float]:
        """Show new pictures and ask at once: all is encoded and computed. Returns milliseconds
        from the first picture to the first token, too."""
        size = self._runtime.config.profile.encoder.size
        n = _frames(length, self._runtime.config.profile.encoder.n_tokens)
        pictures = self._rng.integers(0, 256, (n, *size, 3), np.uint8)
        # In this order: the other engine would compute the opening text after a reset.
        self._runtime.move_ingestion(STREAM, engine)
        self._runtime.reset(STREAM)
        began = time.monotonic()
        for k, picture in enumerate(pictures):
            self._runtime.add_frame(STREAM, picture, stamp_ns=k)
        asked = time.monotonic()
        result = self._ask(engine, "local")
        if result.metrics.history_frames != n:
            raise RuntimeError(f"{result.metrics.history_frames} of {n} frames are in the history")
        return result, 1e3 * (asked - began) + result.metrics.ttft_ms

    def _moved(self, destination: str, tokens: int) -> Moved:
        """Have ``tokens`` that are missing imported."""
        self._steps.clear()
        result = self._ask(destination, "import", imported=tokens)
        return Moved.of(result.metrics.ttft_ms, self._steps)

    def _go_back(self, engine: str, n: int, tokens: int) -> int:
        """Let an engine hold version ``n`` only; returns how many of ``tokens`` it lacks then."""
        self._evict(engine)
        epoch = self._runtime.stream_status(STREAM).published.epoch
        result = self._ask(engine, "import", binding=VersionBinding(epoch, n))
        return tokens - result.metrics.history_tokens

    def _hand_off(self, source: str, destination: str) -> Handoff:
        """Both hold the history. The second token ends the answer, so it is told at once."""
        local = self._ask(destination, "local", max_tokens=2).metrics.decode_ms
        self._steps.clear()
        handed = self._ask(destination, "local", prefill_engine=source, max_tokens=2).metrics
        return Handoff(local, handed.decode_ms, Moved.of(handed.ttft_ms, self._steps))

    def _evict(self, engine: str) -> None:
        if self._runtime.evict(STREAM, engine) != 1:
            raise RuntimeError(f"engine {engine} did not hold the history")

    def _ask(
        self,
        engine: str,
        path: str,
        *,
        imported: int | None = None,
        replayed: int = 0,
        **options: Any,
    ) -> AnswerResult:
        """Ask, and make sure that it went the way it should."""
        options = {"max_tokens": 1, "engine": engine, "path": path, **options}
        answer = self._runtime.ask(STREAM, QUESTION, AskOptions(**options))
        result = answer.result(_PATIENCE_S)
        m = result.metrics
        expected = (path, m.imported_tokens if imported is None else imported, replayed)
        found = (m.path, m.imported_tokens, m.replayed_tokens)
        if result.finish_reason is not FinishReason.LENGTH or m.engine != engine:
            raise RuntimeError(f"{engine}: {result.finish_reason} {result.error}")
        if found != expected:
            raise RuntimeError(f"path, imported and replayed tokens: {found}, not {expected}")
        return result


def describe(plan: Plan, model: BenchmarkModel) -> Sequence[str]:
    """What the figures are of, in words."""
    encoder = model.profile.encoder
    return (
        f"Model: {model.label}; frames of {encoder.n_tokens} + {_WRAPPING} tokens, encoded with "
        f"{encoder.backends[0].file.name} on {_encoder_threads()} CPU threads",
        "Through a Runtime without ROS: first tokens as it reports them (AnswerMetrics.ttft_ms); "
        "recompute counts from the first picture, handing over to it, encoding and computing "
        "overlap; the history's KV is on the other engine only, no snapshot is kept",
        "Export and import by themselves: in the engines' threads, with checksum and checks",
        "Each cell: median (least..largest); ratios within each round; replaying all once only "
        f"where recomputing takes over {REPLAY_ONCE_MS / 1e3:.0f} s, never where over "
        f"{REPLAY_NEVER_MS / 1e3:.0f} s",
    )
