"""An accepted question on its way to an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    FinishReason,
    StartAnswer,
    TrunkId,
)
from edge_vlm_ros.engines.snapshot import Snapshot
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
from .boundary import boundary
from .path import Path
from .status import PlanRecord

LONGEST_WAIT_S = 3600.0
"""A queue refuses to wait for centuries, which a deadline may be."""


@dataclass(frozen=True)
class StateBefore:
    """What an engine had of the history when a question was given to it."""

    held_n: int
    published_n: int
    ingests: bool


@dataclass
class StateUse:
    """What it took to have the history on the engines of a question; tokens and bytes."""

    reused: int = 0
    imported: int = 0
    replayed: int = 0
    moved_bytes: int = 0

    @property
    def path(self) -> Path:
        """The path that was taken in the end."""
        if self.imported:
            return Path.IMPORT
        return Path.REPLAY if self.replayed else Path.LOCAL


@dataclass
class Question:
    """The coordinator's record of one question. Times are readings of its clock in seconds."""

    answer: Answer
    prompt: tuple[int, ...]
    options: AskOptions
    max_tokens: int
    version: Version
    arrived: float
    path: Path
    engine: str = ""
    """Decodes the answer; empty until it is chosen."""
    prefill_engine: str = ""
    planned_path: Path = Path.ANY
    """How the prefill engine gets the history."""
    plan: PlanRecord | None = None
    """The last plan made for it."""
    history_tokens: int = 0
    """Of its version, known when it has been planned."""
    planned_at: float = 0.0
    """When the last plan was made."""
    planned_again: bool = False
    """It had to wait for its history, and has been planned anew since that is there."""
    routed: tuple[str, float] | None = None
    """The engine that it counts for, and since when."""
    waits_for_place: bool = False
    """Planned, and to be planned again when an engine has a place for another answer."""
    context_due: float = 0.0
    """When its history is foreseen to be on its engine."""
    running_on: str | None = None
    """The engine that has the question in hand."""
    handed_off: bool = False
    prefilled: Snapshot | None = None
    """The question's own KV on its way from one engine to another."""
    moving_to: str = ""
    """The engine that gets the history ready to go on with the answer, while it is decoded."""
    is_leaving: bool = False
    """Its engine has been told to give it up to ``moving_to``."""
    was_moved: bool = False
    wants_kv: bool = True
    state_since: dict[str, StateBefore] = field(default_factory=dict)
    use: StateUse = field(default_factory=StateUse)
    failovers: int = 0
    failed_on: set[str] = field(default_factory=set)
    """Engines that could not compute it; each is tried once."""
    ending: FinishReason | None = None
    """Why it is being ended from outside."""
    end_by: float | None = None
    """When it ends even if its engine has not confirmed."""
    state: AnswerState = AnswerState.WAITING_CONTEXT
    context: ContextUsed | None = None
    placed: float | None = None
    context_ready: float | None = None
    prefill_started: float | None = None
    first_token: float | None = None
    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    @property
    def answer_id(self) -> int:
        return self.answer.answer_id

    @property
    def generated_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def deadline(self) -> float | None:
        """When something has to be done about its end; None when nothing."""
        if self.ending is not None:
            return self.end_by
        seconds = self.options.deadline_s
        return self.arrived + seconds if seconds > 0 else None

    @property
    def is_handoff(self) -> bool:
        """Whether the answer is still to go to another engine after its prefill."""
        return self.engine != self.prefill_engine and not self.handed_off

    @property
    def is_open(self) -> bool:
        """Whether no engine has begun it, so that it may go anywhere."""
        is_new = not (self.handed_off or self.token_ids or self.ending)
        return is_new and self.running_on is None and self.wants_kv

    @property
    def next_engine(self) -> str:
        return self.prefill_engine if self.is_handoff else self.engine

    @property
    def may_move(self) -> bool:
        """Whether another engine may go on with the answer: once, and not if the asker has chosen
        one. What an engine has failed on is left alone."""
        options = self.options
        is_free = not (options.engine or options.prefill_engine) and self.path is Path.ANY
        is_new = not (self.moving_to or self.was_moved or self.failed_on or self.ending)
        return is_free and is_new and not self.is_handoff and self.state is AnswerState.DECODING

    def leave(self) -> None:
        """Its engine has given it up, to go on elsewhere."""
        self.handed_off, self.prefilled = True, None
        if self.moving_to:
            self.engine, self.moving_to = self.moving_to, ""
            self.was_moved, self.is_leaving = True, False

    def unplace(self) -> None:
        """No engine is chosen any more."""
        self.engine = self.prefill_engine = ""
        self.planned_path, self.planned_again = Path.ANY, False

    def forget_places(self) -> None:
        """Everything is to be chosen anew, whatever was asked for."""
        self.unplace()
        self.running_on, self.moving_to = None, ""
        self.handed_off = self.is_leaving = False
        self.path = Path.ANY
        self.state_since.clear()

    def start(self, trunk: TrunkId, epoch: Epoch) -> StartAnswer:
        """The command that takes the question on from where it is."""
        return StartAnswer(
            answer_id=self.answer_id,
            trunk=trunk,
            start=boundary(epoch, self.version.n),
            prompt=self.prompt,
            max_tokens=self.max_tokens,
            sampling=self.options.sampling,
            stop=self.options.stop,
            generated=tuple(self.token_ids),
            state=self._fitting_state(),
            prefill_only=self.is_handoff,
        )

    def _fitting_state(self) -> Snapshot | None:
        """The handed-over KV, unless more was generated since it was made."""
        if self.prefilled is None:
            return None
        header = self.prefilled.header
        computed = len(self.prompt) + len(self.token_ids) - 1
        return self.prefilled if header.stop_tokens - header.start_tokens == computed else None

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
        moved = self.use.path is not Path.LOCAL
        return AnswerMetrics(
            engine=self.engine,
            prefill_engine=self.prefill_engine,
            path=self.use.path.value,
            ttft_ms=span(self.arrived, self.first_token),
            total_ms=span(self.arrived, now),
            context_wait_ms=span(self.arrived, self.context_ready or now),
            state_ms=span(self.placed, self.context_ready or now) if moved else 0.0,
            queue_ms=span(self.context_ready, self.prefill_started or now),
            prefill_ms=span(self.prefill_started, self.first_token or now),
            decode_ms=decode_ms,
            decode_tok_s=1000.0 * after_first / decode_ms if after_first > 0 and decode_ms else 0.0,
            prompt_tokens=len(self.prompt),
            generated_tokens=self.generated_tokens,
            history_tokens=context.tokens if context else 0,
            history_frames=context.frames if context else 0,
            reused_tokens=self.use.reused,
            imported_tokens=self.use.imported,
            replayed_tokens=self.use.replayed,
            moved_bytes=self.use.moved_bytes,
            failovers=self.failovers,
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
