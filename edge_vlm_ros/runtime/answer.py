"""The answer to one question, while it is being made and after."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from edge_vlm_ros.engines.protocol import FinishReason
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.history import Binding, NewestRegistered, Version


class AnswerState(Enum):
    """Where a question is on its way."""

    WAITING_CONTEXT = "waiting_context"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODING = "decoding"
    FINISHED = "finished"


class QuestionRejected(RuntimeError):
    """A question was not accepted. ``reason`` is a short code, the text says what to do."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class AskOptions:
    """How a question is to be answered.

    ``max_tokens`` 0 takes the runtime's default; ``deadline_s`` counts from arrival in seconds,
    0 means none; ``commit`` appends question and answer to the history afterwards.

    ``engine`` decodes the answer and ``prefill_engine`` computes the question; when they differ the
    answer is handed off after its first token. Empty names leave the choice to the runtime, which
    takes an engine that holds the history, or the one that ingests it. ``path`` forces how the
    engine gets the history: ``local`` (it must be the one that holds or ingests it), ``import`` or
    ``replay``; empty takes the first of these that is possible.
    """

    binding: Binding = field(default_factory=NewestRegistered)
    max_tokens: int = 0
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    stop: tuple[str, ...] = ()
    deadline_s: float = 0.0
    commit: bool = False
    engine: str = ""
    prefill_engine: str = ""
    path: str = ""


@dataclass(frozen=True)
class ContextUsed:
    """What an answer could see."""

    version: Version
    frames: int
    first_stamp_ns: int
    last_stamp_ns: int
    turns: int
    tokens: int
    identity: bytes


@dataclass(frozen=True)
class AnswerMetrics:
    """Durations in milliseconds and sizes in tokens; see msg/Metrics.msg for each meaning.

    A duration of a phase that was never reached is 0; ``ttft_ms`` is then 0 too.
    """

    engine: str
    prefill_engine: str
    path: str
    ttft_ms: float
    total_ms: float
    context_wait_ms: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    decode_tok_s: float
    prompt_tokens: int
    generated_tokens: int
    history_tokens: int
    history_frames: int
    reused_tokens: int
    imported_tokens: int
    replayed_tokens: int
    moved_bytes: int
    state_ms: float
    failovers: int
    running_answers: int
    embedding_cache_hits: int
    embedding_cache_misses: int


@dataclass(frozen=True)
class AnswerUpdate:
    """One step of an answer: a new state, and the text that came with it (maybe empty).

    ``sequence`` counts the updates that carry text, from 0; concatenated in this order their
    deltas are the answer's text.
    """

    state: AnswerState
    sequence: int
    delta: str
    generated_tokens: int


@dataclass(frozen=True)
class AnswerResult:
    """How an answer ended."""

    answer_id: int
    stream: str
    question: str
    text: str
    finish_reason: FinishReason
    error: str
    token_ids: tuple[int, ...]
    context: ContextUsed
    metrics: AnswerMetrics
    committed: bool


class Answer:
    """Handle of an accepted question. Iterate over it for updates, or wait for ``result``.

    Made by ``Runtime.ask``. Updates and result may be read from any one thread.
    """

    def __init__(
        self, answer_id: int, stream: str, question: str, cancel: Callable[[int], None]
    ) -> None:
        self.answer_id = answer_id
        self.stream = stream
        self.question = question
        self._cancel = cancel
        self._inbox: queue.SimpleQueue[AnswerUpdate | AnswerResult] = queue.SimpleQueue()
        self._result: AnswerResult | None = None

    def cancel(self) -> None:
        """Ask for an end as soon as possible; the partial text is the result."""
        self._cancel(self.answer_id)

    def next_update(self, timeout: float | None = None) -> AnswerUpdate | None:
        """The next update, or None when the answer has finished.

        Raises TimeoutError after ``timeout`` seconds without one.
        """
        if self._result is not None:
            return None
        try:
            received = self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"answer {self.answer_id}: no update in {timeout} s") from None
        if isinstance(received, AnswerUpdate):
            return received
        self._result = received
        return None

    def __iter__(self) -> Iterator[AnswerUpdate]:
        while (update := self.next_update()) is not None:
            yield update

    def result(self, timeout: float | None = None) -> AnswerResult:
        """Wait for the end; ``timeout`` is the longest silence in between, in seconds.

        Raises TimeoutError.
        """
        while self._result is None:
            self.next_update(timeout)
        return self._result

    # Called by the coordinator.
    def put(self, received: AnswerUpdate | AnswerResult) -> None:
        self._inbox.put(received)
