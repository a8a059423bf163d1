"""What tests of several layers share: the demo model, its scenes, and runtimes to show them to."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_vlm_ros.demo.questions import Question
from edge_vlm_ros.demo.stream import TableStream
from edge_vlm_ros.engines.protocol import Origin
from edge_vlm_ros.model_profile import ModelProfile
from edge_vlm_ros.runtime import (
    Answer,
    EngineConfig,
    HistoryConfig,
    PlacementConfig,
    PlanningConfig,
    QuestionLimits,
    Runtime,
    RuntimeConfig,
    StreamConfig,
    VisionConfig,
    load_profile,
)

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "demo"
PROFILE = ROOT / "config" / "models" / "demo.yaml"
PATIENCE_S = 60.0
"""How long a test waits for what must happen: far longer than it ever takes."""

Frame = npt.NDArray[np.uint8]
Start = Callable[..., Runtime]
"""The fixture ``start`` of test/runtime: makes an active runtime."""


@functools.cache
def demo_profile() -> ModelProfile:
    return load_profile(PROFILE)


# -------------------------------------------------------------------------------- scenes
class Clip:
    """Frames of an endless table, drawn once, and the truth about any window of them."""

    def __init__(self, seed: int, event_rate: float = 0.3) -> None:
        self._table = TableStream(seed, width=224, height=224, event_rate=event_rate)
        self._frames: list[Frame] = []

    def frames(self, stop: int) -> list[Frame]:
        """The frames 0 .. stop - 1, uint8 [224, 224, 3]."""
        for index in range(len(self._frames), stop):
            self._frames.append(self._table.frame(index))
        return self._frames[:stop]

    def truth(self, question: Question, start: int, stop: int) -> str | None:
        return self._table.truth(question, start, stop)

    def question(self, start: int, stop: int, rng: random.Random) -> Question:
        question = self._table.ask_about(start, stop, rng)
        assert question is not None
        return question


@functools.cache
def clip(seed: int) -> Clip:
    """Clips are kept: drawing takes longer than anything else."""
    return Clip(seed)


@dataclass(frozen=True)
class Change:
    """A question whose true answer is another one when frame ``stop`` has been seen too."""

    clip: Clip
    stop: int
    text: str
    before: str
    after: str


@functools.cache
def changes(n: int, n_frames: int = 8) -> tuple[Change, ...]:
    """The first ``n`` changes found, one per clip, at most ``n_frames`` frames in."""
    found = []
    seed = 0
    while len(found) < n:
        seed += 1
        change = _find_change(clip(seed), n_frames)
        if change is not None:
            found.append(change)
    return tuple(found)


def _find_change(candidate: Clip, n_frames: int) -> Change | None:
    rng = random.Random(7)
    for stop in range(2, n_frames):
        for _ in range(40):
            question = candidate.question(0, stop, rng)
            if question.kind not in ("count", "where", "describe"):
                continue
            before = candidate.truth(question, 0, stop)
            after = candidate.truth(question, 0, stop + 1)
            if before and after and before != after:
                return Change(candidate, stop, question.text, before, after)
    return None


# -------------------------------------------------------------------------------- runtimes
def demo_config(
    *streams: str | StreamConfig,
    history: HistoryConfig | None = None,
    engine: EngineConfig | None = None,
    engines: tuple[EngineConfig, ...] = (),
    questions: QuestionLimits | None = None,
    vision: VisionConfig | None = None,
    profile: ModelProfile | None = None,
    placement: PlacementConfig | None = None,
    planning: PlanningConfig | None = None,
) -> RuntimeConfig:
    """A configuration of the demo model; a stream given by name gets ``history``, and room for
    many frames before the encoder, so that none is dropped. Unless ``planning`` says otherwise the
    first engine does everything that no question asks another one for, and costs are guessed."""

    def stream(given: str | StreamConfig) -> StreamConfig:
        if isinstance(given, StreamConfig):
            return given
        return StreamConfig(given, history or HistoryConfig(), max_pending_frames=64)

    engines = engines or (engine or EngineConfig(n_threads=1),)
    policy = f"batched:{engines[0].name}"
    return RuntimeConfig(
        profile or demo_profile(),
        tuple(stream(s) for s in streams or ("table",)),
        engines,
        questions or QuestionLimits(),
        vision or VisionConfig(),
        placement or PlacementConfig(),
        planning or PlanningConfig(policy=policy, calibration="never"),
    )


def engine_of(runtime: Runtime, name: str = "cpu") -> Any:
    """The running engine, to look inside or to hold it."""
    return runtime._parts.slots.engine(name)


def show(runtime: Runtime, stream: str, frames: Sequence[Frame], first: int = 0) -> None:
    """Add frames; the stamp of each is its index in nanoseconds, counted from ``first``."""
    for index, frame in enumerate(frames, first):
        runtime.add_frame(stream, frame, index)


def answered(answer: Answer) -> str:
    return answer.result(PATIENCE_S).text


def eventually(condition: Callable[[], Any], what: str = "") -> None:
    """Wait until the condition holds. For states that are reached without an event."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"never came true: {what or condition}")
        time.sleep(0.002)


def settle(runtime: Runtime) -> None:
    """Wait until all frames are published, all questions answered, and what engines have time for
    is computed ahead."""

    def is_settled() -> bool:
        streams = [runtime.stream_status(name) for name in runtime.stream_names]
        trunks = runtime._loaded().trunks.table
        return (
            runtime.question_status().pending == 0
            and all(s.pending_frames == 0 and s.published == s.registered for s in streams)
            and runtime._on_loop(lambda: all(record.settled for record in trunks))
        )

    eventually(is_settled, "every frame published, every question answered")


def known_cells(runtime: Runtime, engine: str = "cpu") -> range:
    """How many cells an engine's histories take, and what it has computed ahead of them. A fork
    shares its cells while the trunk is there that it was forked from."""
    coordinator = runtime._loaded()
    streams = coordinator.streams.values()
    of_use = {
        (s.name, e.number) for s in streams for e in (s.history.current, s.history.successor) if e
    }
    records = list(coordinator.trunks.table.on_engine(engine))
    assert {(record.trunk.stream, record.trunk.epoch) for record in records} <= of_use
    tokens = sum(record.computed.tokens for record in records)
    forked = sum(r.tokens_by_origin(0, r.computed.n)[Origin.FORKED] for r in records)
    return range(tokens - forked, tokens + 1)


def assert_released(runtime: Runtime) -> None:
    """Settle, then only what the current histories need is held: cells, sequences, pins."""
    settle(runtime)
    engine, coordinator = engine_of(runtime), runtime._loaded()
    streams, cells = coordinator.streams.values(), known_cells(runtime)
    eventually(lambda: engine.status().cells_used in cells, f"{cells} cells are used")
    status = engine.status()
    assert (status.cells_reserved, status.running_answers, status.waiting_answers) == (0, 0, 0)
    assert status.trunks == len(list(coordinator.trunks.table.on_engine("cpu")))
    limit = runtime.config.questions.max_pending
    n_sequences = 2 * len(streams) + 2 * limit
    assert len(engine._sequences.free) == n_sequences - status.trunks
    pinned = set()
    for stream in streams:
        history = stream.history
        assert [epoch.number for epoch in history.epochs] == [history.current.number]
        table, current = coordinator.trunks.table, history.current
        record = table.get("cpu", stream.name, current.number)
        assert record is not None and record.computed.tokens == current.registered_tokens
        assert all(r.settled and not r.reserved for r in table.of_stream(stream.name))
        shown = {frame.frame_id for frame in history.current.frames(len(history.current))}
        assert set(stream._embedded) == shown and not stream._pending
        pinned |= {embedded.key for embedded in stream._embedded.values()}
    assert runtime.vision_status().cache.pinned_entries == len(pinned)


def all_encoded(runtime: Runtime, stream: str) -> bool:
    """Whether the encoder has nothing left to do for the stream."""
    status = runtime.stream_status(stream)
    return status.encoded == status.registered


class Gate:
    """Holds a thread at a place until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def wait_until_reached(self) -> None:
        assert self.reached.wait(PATIENCE_S), "nobody came to the gate"

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(PATIENCE_S), "the gate was never opened"


@contextmanager
def held(
    owner: object, method: str, when: Callable[..., bool] = lambda *arguments: True
) -> Iterator[Gate]:
    """Hold the calls of a method for which ``when`` is true, before they do anything.

    The gate opens at the end at the latest.
    """
    gate = Gate()
    original = getattr(owner, method)

    def gated(*arguments: Any) -> Any:
        if when(*arguments):
            gate.pass_through()
        return original(*arguments)

    was_replaced = method in vars(owner)
    setattr(owner, method, gated)
    try:
        yield gate
    finally:
        gate.open()
        if was_replaced:
            setattr(owner, method, original)
        else:
            delattr(owner, method)  # the class's own shows again


def hold_encoder(runtime: Runtime) -> Any:
    """Hold the encoder before its next frame."""
    return held(runtime._parts.encoder.encoders[0], "encode")


def hold_ingestion(runtime: Runtime) -> Any:
    """Hold the engine before it computes the embeddings of its next frame."""
    return held(engine_of(runtime)._context, "decode_embeddings")


def hold_prefill(runtime: Runtime) -> Any:
    """Hold the engine before it computes its next question."""
    return held(engine_of(runtime)._context, "decode_tokens", _is_prefill)


def hold_decoding(runtime: Runtime, engine: str = "cpu", after_steps: int = 3) -> Any:
    """Hold the engine before it decodes, after some steps."""
    steps = iter(range(1_000_000))

    def is_due(tokens: Any, positions: Any, sequences: Any, wants_logits: Sequence[bool]) -> bool:
        return all(wants_logits) and next(steps) >= after_steps

    return held(engine_of(runtime, engine)._context, "decode_tokens", is_due)


def _is_prefill(tokens: Any, positions: Any, sequences: Any, wants_logits: Sequence[bool]) -> bool:
    return wants_logits[-1] and not all(wants_logits)
