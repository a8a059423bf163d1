"""Drives one engine from a test: commands in, events out of a queue."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.demo.questions import Item
from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.llama_engine import LlamaCppEngine
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AppendFailed,
    AppendToTrunk,
    Boundary,
    Command,
    DropTrunk,
    EmbeddingSegment,
    EndAnswer,
    EngineStatus,
    Event,
    FinishReason,
    Segment,
    StartAnswer,
    TokenSegment,
    TokensGenerated,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.history import embedding_positions
from edge_vlm_ros.runtime.prompt import PromptTemplate

TIMEOUT_S = 60.0
GREEDY = SamplingParameters()
Items = tuple[tuple[Segment, ...], ...]
_T = TypeVar("_T")


@dataclass
class Outcome:
    """What an answer came to."""

    deltas: list[str] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    """Token ids as they were told."""
    finished: AnswerFinished | None = None

    @property
    def end(self) -> AnswerFinished:
        assert self.finished is not None
        return self.finished

    @property
    def text(self) -> str:
        return "".join(self.deltas) + self.end.tail

    @property
    def ids(self) -> tuple[int, ...]:
        return self.end.token_ids


def items_of(prompt: PromptTemplate, frames: Iterable[NDArray[np.float32]]) -> Items:
    """A history's items as segments: the opening text, then every frame."""
    shape = prompt.frame_shape
    wrapped = [
        (TokenSegment(shape.prefix), EmbeddingSegment(rows, shape.grid), TokenSegment(shape.suffix))
        for rows in frames
    ]
    return ((TokenSegment(prompt.open_tokens),), *wrapped)


def n_tokens(items: Items, n: int) -> int:
    """Tokens of version ``n``."""
    return sum(
        len(s.tokens) if isinstance(s, TokenSegment) else len(s.embeddings)
        for item in items[:n]
        for s in item
    )


def n_positions(items: Items, n: int) -> int:
    """The position after version ``n``."""
    return sum(
        len(s.tokens)
        if isinstance(s, TokenSegment)
        else embedding_positions(len(s.embeddings), s.grid)
        for item in items[:n]
        for s in item
    )


def boundary(items: Items, n: int) -> Boundary:
    """The end of version ``n``, with an identity that depends on all contents before it."""
    identity = hashlib.blake2b(digest_size=32)
    for segment in (s for item in items[:n] for s in item):
        is_text = isinstance(segment, TokenSegment)
        identity.update(repr(segment.tokens).encode() if is_text else segment.embeddings.tobytes())
    return Boundary(n, n_tokens(items, n), identity.digest(), n_positions(items, n))


class Driver:
    """An engine with all its events; see ``LlamaCppEngine`` for the arguments."""

    def __init__(
        self,
        model: LlamaModel,
        prompt: PromptTemplate,
        *,
        n_ctx: int = 2048,
        max_trunks: int = 4,
        max_branches: int = 12,
        answer_cells: int = 128,
        max_exports: int = 4,
        **config: Any,
    ) -> None:
        self.model, self.prompt = model, prompt
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.seen: list[Event] = []
        self.answers: dict[int, Outcome] = {}
        self.n_sequences = max_trunks + max_branches
        self.n_exports = max_exports
        self.engine = LlamaCppEngine(
            model,
            EngineConfig(name="test", **{"n_threads": 1, **config}),
            n_ctx=n_ctx,
            max_trunks=max_trunks,
            max_branches=max_branches,
            answer_cells=answer_cells,
            max_exports=max_exports,
            stop_tokens=prompt.stop_tokens,
            emit=self.events.put,
        )

    # ---------------------------------------------------------------- commands
    def submit(self, *commands: Command) -> None:
        for command in commands:
            self.engine.submit(command)

    def append(self, trunk: TrunkId, items: Items, first: int = 1, last: int = 0) -> None:
        """Submit the versions ``first`` to ``last`` (0: all)."""
        for n in range(first, (last or len(items)) + 1):
            self.submit(AppendToTrunk(trunk, n, items[n - 1]))

    def ingest(self, trunk: TrunkId, items: Items, first: int = 1, last: int = 0) -> None:
        """Append and wait until all is computed."""
        last = last or len(items)
        self.append(trunk, items, first, last)
        self.until(lambda e: isinstance(e, VersionComputed) and (e.trunk, e.n) == (trunk, last))

    def question(
        self,
        answer_id: int,
        trunk: TrunkId,
        start: int | Boundary,
        text: str,
        *,
        max_tokens: int = 48,
        sampling: SamplingParameters = GREEDY,
        stop: tuple[str, ...] = (),
    ) -> StartAnswer:
        """``start`` is a boundary, or its tokens where nothing else of it matters."""
        if isinstance(start, int):
            start = Boundary(0, start, bytes(32))
        prompt = self.prompt.question(self.model.tokenize(text, parse_special=False))
        return StartAnswer(answer_id, trunk, start, prompt, max_tokens, sampling, stop)

    def ask(self, *args: Any, **options: Any) -> Outcome:
        """One question alone, to its end."""
        command = self.question(*args, **options)
        self.submit(command)
        return self.finished(command.answer_id)

    def drop(self, *trunks: TrunkId) -> None:
        self.submit(*map(DropTrunk, trunks))

    def cancel(self, answer_id: int) -> None:
        self.submit(EndAnswer(answer_id, FinishReason.CANCELLED))

    # ---------------------------------------------------------------- events
    def next_event(self, timeout: float = TIMEOUT_S) -> Event:
        event = self.events.get(timeout=timeout)
        self.seen.append(event)
        if isinstance(event, TokensGenerated):
            self._answer(event.answer_id).deltas.append(event.delta)
            self._answer(event.answer_id).told.extend(event.token_ids)
        elif isinstance(event, AnswerFinished):
            self._answer(event.answer_id).finished = event
        return event

    def until(self, wanted: Callable[[Event], bool]) -> Event:
        while True:
            event = self.next_event()
            if wanted(event):
                return event

    def until_version(self, trunk: TrunkId, n: int) -> None:
        """Wait for a version, unless it has been computed already."""
        while not any((v.trunk, v.n) == (trunk, n) for v in self.of_type(VersionComputed)):
            self.next_event()

    def until_type(self, kind: type[_T]) -> _T:
        event = self.until(lambda e: isinstance(e, kind))
        assert isinstance(event, kind)
        return event

    def finished(self, answer_id: int) -> Outcome:
        while self._answer(answer_id).finished is None:
            self.next_event()
        return self.answers[answer_id]

    def settle(self) -> EngineStatus:
        """Wait until all commands are carried out; returns the status then.

        A probe that fails marks the place: commands are carried out in order.
        """
        probe = TrunkId("probe", len(self.seen))
        self.submit(AppendToTrunk(probe, 2, ()))
        self.until(lambda e: isinstance(e, AppendFailed) and e.trunk == probe)
        # The readings are taken after the step that follows; so ask a second time.
        self.submit(AppendToTrunk(probe, 3, ()))
        self.until(lambda e: isinstance(e, AppendFailed) and (e.trunk, e.n) == (probe, 3))
        return self.engine.status()

    def free_sequences(self) -> int:
        self.settle()
        return len(self.engine._sequences.free)

    def of_type(self, kind: type[_T]) -> list[_T]:
        return [event for event in self.seen if isinstance(event, kind)]

    def _answer(self, answer_id: int) -> Outcome:
        return self.answers.setdefault(answer_id, Outcome())


MakeDriver = Callable[..., Driver]
Encode = Callable[[int, int], tuple[Item, list[NDArray[np.float32]]]]


def assert_nothing_is_left(driver: Driver, cells: int = 0, trunks: int = 0) -> None:
    status = driver.settle()
    assert (status.cells_used, status.cells_reserved, status.trunks) == (cells, 0, trunks)
    assert (status.running_answers, status.waiting_answers) == (0, 0)
    assert driver.free_sequences() == driver.n_sequences - trunks
    exports = driver.engine._core.export_sequences
    assert len(exports.free) == driver.n_exports
    for sequence in (*driver.engine._sequences.free, *exports.free):
        memory = driver.engine._context._memory
        assert llama.llama_memory_seq_pos_max(memory, sequence) == -1


def hold(
    driver: Driver, method: str, when: Callable[..., bool] = lambda *_: True
) -> tuple[threading.Event, threading.Event]:
    """Stop the engine before the first call of a method of the context that ``when`` is true of.

    Returns two events: it has stopped, and it may go on.
    """
    entered, go_on = threading.Event(), threading.Event()
    original = getattr(driver.engine._context, method)

    def held(*args: object) -> object:
        if when(*args):
            entered.set()
            assert go_on.wait(60)
        return original(*args)

    setattr(driver.engine._context, method, held)
    return entered, go_on
