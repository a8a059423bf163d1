"""Which kind of step an engine does next."""

from __future__ import annotations

from enum import Enum


class StepKind(Enum):
    INGEST = "ingest"
    """One chunk of a trunk."""
    PREFILL = "prefill"
    """One chunk of a question."""
    DECODE = "decode"
    """One token of every running answer."""
    TRANSFER = "transfer"
    """One snapshot exported or imported."""


class StepScheduler:
    """Shares an engine's time between ingestion and answers.

    Weighted fair queueing over measured time: the side that has had less of its share goes first,
    so neither starves and an idle side's share is not lost. Between answers, a chunk of a new
    question alternates with a decode step of the running ones.

    Transfers are short and others wait for them, so they go first, but in turns: with decode steps
    while answers are running, else with whatever else there is.
    """

    def __init__(self, ingest_share: float) -> None:
        self._ingest_share = ingest_share
        self._ingest_time = 0.0
        self._answer_time = 0.0
        self._last_answer_step = StepKind.DECODE
        self._had_ingest = self._had_answers = self._had_decode = False
        self._transferred = False

    def choose(
        self, *, ingest: bool, prefill: bool, decode: bool, transfer: bool = False
    ) -> StepKind | None:
        """The next step among the kinds that have work; None when there is none."""
        self._had_decode = decode
        answers = prefill or decode
        if transfer and not (self._transferred and (ingest or answers)):
            return StepKind.TRANSFER
        # A side that was idle gets no credit for that time, but still owes what it overdrew.
        if ingest and not self._had_ingest:
            self._ingest_time = max(self._ingest_time, self._answer_time)
        if answers and not self._had_answers:
            self._answer_time = max(self._ingest_time, self._answer_time)
        self._had_ingest, self._had_answers = ingest, answers
        if ingest and (not answers or self._ingest_time <= self._answer_time):
            return StepKind.INGEST
        if not answers:
            return None
        if prefill and decode:
            turn = self._last_answer_step is StepKind.DECODE
            return StepKind.PREFILL if turn else StepKind.DECODE
        return StepKind.PREFILL if prefill else StepKind.DECODE

    def account(self, kind: StepKind, seconds: float) -> None:
        """A step of this kind took ``seconds``."""
        if kind is StepKind.TRANSFER:
            self._transferred = True
            return
        if kind is StepKind.DECODE or not self._had_decode:
            self._transferred = False
        if kind is StepKind.INGEST:
            self._ingest_time += seconds / self._ingest_share
        else:
            self._answer_time += seconds / (1.0 - self._ingest_share)
            self._last_answer_step = kind
