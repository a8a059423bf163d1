"""An accepted question on its way to an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edge_vlm_ros.engines.protocol import AnswerFinished, StartAnswer, TrunkId
from edge_vlm_ros.history import Epoch, Version
from edge_vlm_ros.vision.embedding_cache import CacheStats

from .answer import (
    Answer,
    AnswerMetrics,
    AnswerResult,
    AnswerState,
    AnswerUpdate,
    AskOptions,
    ContextUsed,
)

LONGEST_WAIT_S = 3600.0
"""A queue refuses to wait for centuries, which a deadline may be."""


@dataclass
class Question:
    """The coordinator's record of one question. Times are readings of its clock in seconds."""

    answer: Answer
    prompt: tuple[int, ...]
    options: AskOptions
    max_tokens: int
    version: Version
    arrived: float
    engine: str
    state: AnswerState = AnswerState.WAITING_CONTEXT
    context: ContextUsed | None = None
    context_ready: float | None = None
    prefill_started: float | None = None
    first_token: float | None = None
    generated_tokens: int = 0
    text: list[str] = field(default_factory=list)

    @property
    def deadline(self) -> float | None:
        seconds = self.options.deadline_s
        return self.arrived + seconds if seconds > 0 else None

    def start(self, epoch: Epoch, now: float) -> StartAnswer:
        """The command that answers the question, now that its version is published."""
        self.context_ready = now
        self.state = AnswerState.QUEUED
        self.context = context_used(self.version, epoch)
        return StartAnswer(
            answer_id=self.answer.answer_id,
            trunk=TrunkId(self.version.stream, self.version.epoch),
            n_tokens=epoch.tokens(self.version.n),
            prompt=self.prompt,
            max_tokens=self.max_tokens,
            sampling=self.options.sampling,
            stop=self.options.stop,
        )

    def update(self, delta: str = "") -> AnswerUpdate:
        """What to tell the asker now; ``delta`` is new text."""
        update = AnswerUpdate(self.state, len(self.text), delta, self.generated_tokens)
        if delta:
            self.text.append(delta)
        return update

    def metrics(self, now: float, running_answers: int, cache: CacheStats) -> AnswerMetrics:
        def span(start: float | None, end: float | None) -> float:
            return 0.0 if start is None or end is None else 1000.0 * (end - start)

        decode_ms = span(self.first_token, now)
        after_first = self.generated_tokens - 1
        context = self.context
        return AnswerMetrics(
            engine=self.engine,
            ttft_ms=span(self.arrived, self.first_token),
            total_ms=span(self.arrived, now),
            context_wait_ms=span(self.arrived, self.context_ready or now),
            queue_ms=span(self.context_ready, self.prefill_started or now),
            prefill_ms=span(self.prefill_started, self.first_token or now),
            decode_ms=decode_ms,
            decode_tok_s=1000.0 * after_first / decode_ms if after_first > 0 and decode_ms else 0.0,
            prompt_tokens=len(self.prompt),
            generated_tokens=self.generated_tokens,
            history_tokens=context.tokens if context else 0,
            history_frames=context.frames if context else 0,
            running_answers=running_answers,
            embedding_cache_hits=cache.hits,
            embedding_cache_misses=cache.misses,
        )

    def result(
        self, finished: AnswerFinished, context: ContextUsed, metrics: AnswerMetrics
    ) -> AnswerResult:
        return AnswerResult(
            answer_id=self.answer.answer_id,
            stream=self.answer.stream,
            question=self.answer.question,
            text="".join(self.text),
            finish_reason=finished.reason,
            error=finished.error,
            token_ids=finished.token_ids,
            context=context,
            metrics=metrics,
            committed=False,
        )


def seconds_to_deadline(questions: Iterable[Question], now: float) -> float | None:
    """How long a queue may be waited for until the first deadline; None without deadlines."""
    deadlines = [q.deadline for q in questions if q.deadline is not None]
    if not deadlines:
        return None
    return min(LONGEST_WAIT_S, max(0.0, min(deadlines) - now))


def context_used(version: Version, epoch: Epoch) -> ContextUsed:
    """What an answer from ``version`` sees. Of a version that is not encoded yet (its question
    ended while waiting), tokens are 0 and the identity is empty."""
    frames = epoch.frames(version.n)
    encoded = version.n <= epoch.encoded_n
    return ContextUsed(
        version=version,
        frames=len(frames),
        first_stamp_ns=frames[0].stamp_ns if frames else 0,
        last_stamp_ns=frames[-1].stamp_ns if frames else 0,
        turns=len(epoch.turns(version.n)),
        tokens=epoch.tokens(version.n) if encoded else 0,
        identity=epoch.identity(version.n) if encoded else b"",
    )
