"""How the work of one engine will unfold: a fluid model of its step scheduler.

Steps are short against answers, so they are treated as continuous. While answers run, ingestion
gets the engine's ``ingest_share`` of the time and answers the rest (weighted fair queueing, as
engines/step_scheduler.py does it); a side without work leaves its part to the other. Among answers
a chunk of the first question that is being prefilled alternates with a decode step of all running
answers. A decode step of B answers makes B tokens in ``decode.seconds(B, mean history)``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .costs import EngineCosts
from .state import AnswerLoad, EngineState

_NEVER = float("inf")
_DONE = 1e-9


@dataclass(frozen=True)
class Unfolded:
    """What becomes of the work of an engine, in seconds from now.

    ``first_token_s`` and ``finished_s`` are those of the new answer (0 without one);
    ``others_s`` is the sum of the ends of all other answers, ``ingested_s`` the end of ingestion.
    """

    first_token_s: float
    finished_s: float
    others_s: float
    ingested_s: float


@dataclass(frozen=True)
class Pace:
    """Seconds of an engine's steps now, beside what the other engines do."""

    chunk_s: float
    """One whole prefill chunk behind the histories at hand."""
    decode_fixed_s: float
    decode_row_s: float
    """Of each answer in a decode step."""
    prefill_slowdown: float

    def step_s(self, answers: int) -> float:
        return self.decode_fixed_s + answers * self.decode_row_s


def pace(
    engine: EngineState,
    costs: EngineCosts,
    history_tokens: float,
    prefill_slowdown: float,
    decode_slowdown: float,
) -> Pace:
    """``history_tokens`` is the mean over the answers; slowdowns are factors of 1 or more."""
    chunk = engine.chunk_tokens
    return Pace(
        chunk_s=prefill_slowdown * costs.prefill.seconds(chunk, history_tokens),
        decode_fixed_s=decode_slowdown * costs.decode.fixed_s,
        decode_row_s=decode_slowdown
        * (costs.decode.row_s + costs.decode.row_history_s * history_tokens),
        prefill_slowdown=prefill_slowdown,
    )


class _Job:
    """An answer on its way; ``prefill_s`` is left of its prefill, alone on the engine."""

    __slots__ = ("is_new", "prefill_s", "ready_s", "tokens")

    def __init__(self, ready_s: float, prefill_s: float, tokens: float, is_new: bool) -> None:
        self.ready_s, self.prefill_s, self.tokens, self.is_new = ready_s, prefill_s, tokens, is_new


def unfold(
    engine: EngineState,
    costs: EngineCosts,
    pace: Pace,
    ingest_s: float,
    new: AnswerLoad | None = None,
) -> Unfolded:
    """Let the engine carry out its answers, ``new`` last, beside ``ingest_s`` of ingestion."""
    waiting = [_job(load, engine, costs, pace, False) for load in engine.answers]
    if new is not None:
        waiting.append(_job(new, engine, costs, pace, True))
    return _Unfolding(engine, pace, ingest_s, waiting).run()


def _job(
    load: AnswerLoad, engine: EngineState, costs: EngineCosts, pace: Pace, is_new: bool
) -> _Job:
    prefill = costs.prefill_s(load.prompt_tokens, load.history_tokens, engine.chunk_tokens)
    return _Job(
        load.ready_in_s, pace.prefill_slowdown * prefill, max(1.0, load.expected_tokens), is_new
    )


class _Unfolding:
    def __init__(
        self, engine: EngineState, pace: Pace, ingest_s: float, waiting: list[_Job]
    ) -> None:
        self._slots = engine.max_parallel
        self._share = engine.ingest_share
        self._batching = engine.batching
        self._pace = pace
        self._ingest_s = ingest_s
        self._waiting = waiting
        self._prefilling: list[_Job] = []
        self._decoding: list[_Job] = []
        self._now = self._first_token = self._finished = self._others = self._ingested = 0.0

    def run(self) -> Unfolded:
        while True:
            self._admit()
            if not (self._prefilling or self._decoding or self._waiting or self._ingest_s > _DONE):
                return Unfolded(self._first_token, self._finished, self._others, self._ingested)
            self._advance()

    def _admit(self) -> None:
        """Answers start in the order in which they were given, as soon as their history is there
        and one of the places is free."""
        if not self._waiting:
            return
        rest = []
        for job in self._waiting:
            running = len(self._prefilling) + len(self._decoding)
            if job.ready_s > self._now + _DONE or running >= self._slots:
                rest.append(job)
            elif job.prefill_s > 0.0:
                self._prefilling.append(job)
            else:
                self._decoding.append(job)
        self._waiting = rest

    def _advance(self) -> None:
        """To the next change of who is at work."""
        answers = bool(self._prefilling or self._decoding)
        ingest_rate = answer_rate = 1.0
        if self._ingest_s > _DONE and answers:
            ingest_rate, answer_rate = self._share, 1.0 - self._share
        n = len(self._decoding)
        answering = max(1, n)  # with none, an empty step may cost nothing
        step = self._pace.step_s(answering) if self._batching else answering * self._pace.step_s(1)
        prefill_rate, decode_rate = answer_rate, answer_rate / step
        if self._prefilling and n:
            chunk = min(self._pace.chunk_s, self._prefilling[0].prefill_s) or self._pace.chunk_s
            prefill_rate = answer_rate * chunk / (chunk + step)
            decode_rate = answer_rate / (chunk + step)
        dt = _NEVER
        if self._ingest_s > _DONE:
            dt = self._ingest_s / ingest_rate
        if self._prefilling:
            dt = min(dt, self._prefilling[0].prefill_s / prefill_rate)
        if n:
            dt = min(dt, min([job.tokens for job in self._decoding]) / decode_rate)
        if self._waiting and len(self._prefilling) + n < self._slots:
            dt = min(dt, min([job.ready_s for job in self._waiting]) - self._now)
        self._now += dt
        self._let_pass(dt, ingest_rate, prefill_rate, decode_rate)

    def _let_pass(
        self, dt: float, ingest_rate: float, prefill_rate: float, decode_rate: float
    ) -> None:
        if self._ingest_s > _DONE:
            self._ingest_s -= dt * ingest_rate
            self._ingested = self._now
        if self._decoding:
            tokens, running = dt * decode_rate + _DONE, []
            for job in self._decoding:
                job.tokens -= tokens
                if job.tokens > _DONE:
                    running.append(job)
                else:
                    self._end(job)
            self._decoding = running
        if self._prefilling:
            job = self._prefilling[0]
            job.prefill_s -= dt * prefill_rate
            if job.prefill_s <= _DONE:
                del self._prefilling[0]
                self._begin(job)

    def _begin(self, job: _Job) -> None:
        """The last chunk of a question gives the first token of its answer."""
        if job.is_new:
            self._first_token = self._now
        job.tokens -= 1.0
        if job.tokens > _DONE:
            self._decoding.append(job)
        else:
            self._end(job)

    def _end(self, job: _Job) -> None:
        if job.is_new:
            self._finished = self._now
        else:
            self._others += self._now
