"""How the work of one engine will unfold: a fluid model of its step scheduler.

Steps are short against answers, so they are treated as continuous. While answers run, ingestion
gets the engine's ``ingest_share`` of the time and answers the rest (weighted fair queueing, as
engines/step_scheduler.py does it); a side without work leaves its part to the other. Among answers
a chunk of the first question that is being prefilled alternates with a decode step of all running
answers. A decode step makes one token of each answer in the time of a batch of so many and a
time for the history of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil
from typing import NamedTuple

from .costs import EngineCosts
from .state import AnswerLoad, EngineState

_NEVER = float("inf")
_LEAST_STEP_S = 1e-9
"""Costs of 0 would be infinitely fast."""


@dataclass(frozen=True)
class Unfolded:
    """What becomes of the work of an engine, in seconds from now.

    ``first_token_s`` and ``finished_s`` are those of the new answer (0 without one).
    """

    first_token_s: float
    finished_s: float
    others_s: float
    """Sum of the ends of all other answers."""
    ingested_s: float
    """End of ingestion."""
    others_first_s: float = 0.0
    """Sum of the first tokens of those other answers that have none yet."""
    answered_s: float = 0.0
    """End of the last answer."""
    answering_s: float = 0.0
    """Time of the engine that all answers take."""


@dataclass(frozen=True)
class Pace:
    """How many times longer an engine's steps take now, beside what the other engines do."""

    prefill: float = 1.0
    decode: float = 1.0


class _Job(NamedTuple):
    """An answer on its way; ``prefill_s`` is its prefill alone on the engine, in chunks of
    ``chunk_s``; ``tokens`` come then, each for ``row_s`` more of its decode step, for its
    history."""

    ready_s: float
    prefill_s: float
    chunk_s: float
    tokens: float
    row_s: float
    is_new: bool


class EngineTimeline:
    """One engine in one state, with different new answers or without any.

    Up to the moment at which it has a place for another answer all of these are the same: that
    part is unfolded once.
    """

    def __init__(
        self, engine: EngineState, costs: EngineCosts, pace: Pace, ingest_s: float
    ) -> None:
        self._engine = engine
        self._costs = costs
        self._pace = pace
        self._ingest_s = ingest_s
        steps_s = costs.decode.steps_s(engine.max_parallel if engine.batching else 1)
        self._steps_s = [max(_LEAST_STEP_S, pace.decode * step_s) for step_s in steps_s]
        """Of a batch of so many answers."""
        self._jobs = [self._job(load, is_new=False) for load in engine.answers]
        self._until_place = self._begin(ingest_s)
        self._until_place.go(until_place=True)
        self._without: Unfolded | None = None

    @property
    def place_s(self) -> float:
        """When another answer can begin."""
        return self._until_place.now

    @property
    def step_s(self) -> float:
        """A decode step of the answers that run, or one answer's of those that take turns."""
        rows = [job.row_s for job in self._jobs[: self._engine.max_parallel]]
        if not rows:
            return 0.0
        if self._engine.batching:
            return self._steps_s[len(rows)] + sum(rows)
        return self._steps_s[1] + sum(rows) / len(rows)

    @property
    def without(self) -> Unfolded:
        if self._without is None:
            run = self._until_place.copy()
            run.go()
            self._without = run.result()
        return self._without

    def with_answer(self, new: AnswerLoad, extra_ingest_s: float = 0.0) -> Unfolded:
        """``new`` is given last, with so much more to be ingested from now on."""
        if extra_ingest_s > 0.0:
            run = self._begin(self._ingest_s + extra_ingest_s)
        else:
            run = self._until_place.copy()
        run.waiting.append(self._job(new, is_new=True))
        run.go()
        return run.result()

    def _begin(self, ingest_s: float) -> _Run:
        return _Run(self._engine, self._steps_s, ingest_s, list(self._jobs))

    def _job(self, load: AnswerLoad, is_new: bool) -> _Job:
        costs, chunk = self._costs, self._engine.chunk_tokens
        tokens = load.expected_tokens if load.expected_tokens > 1.0 else 1.0
        decode, history = costs.decode, load.history_tokens
        row_s = self._pace.decode * decode.row_history_s * history
        if load.prompt_tokens <= 0:
            return _Job(load.ready_in_s, 0.0, 0.0, tokens, row_s, is_new)
        alone = costs.prefill_s(load.prompt_tokens, history, chunk)
        prefill_s = max(_LEAST_STEP_S, self._pace.prefill * alone)
        chunk_s = prefill_s / ceil(load.prompt_tokens / chunk)
        return _Job(load.ready_in_s, prefill_s, chunk_s, tokens, row_s, is_new)


def unfold(
    engine: EngineState,
    costs: EngineCosts,
    pace: Pace,
    ingest_s: float,
    new: AnswerLoad | None = None,
) -> Unfolded:
    """Let the engine carry out its answers, ``new`` last, beside ``ingest_s`` of ingestion."""
    timeline = EngineTimeline(engine, costs, pace, ingest_s)
    return timeline.without if new is None else timeline.with_answer(new)


class _Run:
    """A moment of an engine's future."""

    def __init__(
        self,
        engine: EngineState,
        steps_s: Sequence[float],
        ingest_s: float,
        waiting: list[_Job],
    ) -> None:
        self._engine = engine
        self._steps_s = steps_s
        self._rows_s = 0.0
        """Of all that decode."""
        self._ingest_s = ingest_s
        self.waiting = waiting
        self._prefilling: list[_Job] = []
        self._rest_s = 0.0
        """Left of the first one's prefill."""
        self._made = 0.0
        """Tokens that an answer would have made which decodes since the beginning."""
        self._decoding: list[tuple[float, float, bool]] = []
        """A heap: what ``_made`` will be at the end of each answer, its ``row_s``, ``is_new``."""
        self.now = 0.0
        self._first_token = self._finished = self._others = self._others_first = 0.0
        self._ingested = self._answered = self._answering = 0.0

    def copy(self) -> _Run:
        other = _Run.__new__(_Run)
        other.__dict__.update(self.__dict__)
        other.waiting = self.waiting.copy()
        other._prefilling = self._prefilling.copy()
        other._decoding = self._decoding.copy()
        return other

    def result(self) -> Unfolded:
        return Unfolded(
            self._first_token,
            self._finished,
            self._others,
            self._ingested,
            self._others_first,
            self._answered,
            self._answering,
        )

    def go(self, until_place: bool = False) -> None:
        """To the end, or until another answer can begin. Every turn of the loop carries out at
        least one of the events that are left, so it ends."""
        slots, share = self._engine.max_parallel, self._engine.ingest_share
        batching = self._engine.batching
        prefilling, decoding = self._prefilling, self._decoding
        now, made, ingest_s, rest_s = self.now, self._made, self._ingest_s, self._rest_s
        answering = self._answering
        while True:
            n = len(decoding)
            if self.waiting and n + len(prefilling) < slots:
                rest_s = self._admit(now, made, rest_s)
                n = len(decoding)
            has_place = n + len(prefilling) < slots
            if until_place and has_place:
                break
            until_ingested = until_prefilled = until_end = until_ready = _NEVER
            ingest_rate = answer_rate = 1.0
            token_rate = prefill_rate = 0.0
            if n or prefilling:
                if ingest_s > 0.0:
                    ingest_rate, answer_rate = share, 1.0 - share
                step_s = self._rows_s if n else 0.0
                if n:
                    step_s += self._steps_s[n] if batching else n * self._steps_s[1]
                if prefilling:
                    chunk_s = prefilling[0].chunk_s
                    prefill_rate = answer_rate * chunk_s / (chunk_s + step_s)
                    until_prefilled = rest_s / prefill_rate
                    step_s += chunk_s
                if n:
                    token_rate = answer_rate / step_s
                    until_end = (decoding[0][0] - made) / token_rate
            if ingest_s > 0.0:
                until_ingested = ingest_s / ingest_rate
            if self.waiting and has_place:
                until_ready = min([job.ready_s for job in self.waiting]) - now
            dt = until_end if until_end < until_prefilled else until_prefilled
            dt = until_ingested if until_ingested < dt else dt
            dt = until_ready if until_ready < dt else dt
            if dt == _NEVER:
                break
            now += dt
            if n or prefilling:
                answering += dt * answer_rate
            if dt == until_ready:
                now = max(now, min([job.ready_s for job in self.waiting]))
            if ingest_s > 0.0:
                ingest_s = 0.0 if dt == until_ingested else ingest_s - dt * ingest_rate
                self._ingested = now
            if n:
                made = decoding[0][0] if dt == until_end else made + dt * token_rate
                while decoding and decoding[0][0] <= made:
                    _, row_s, is_new = heappop(decoding)
                    self._rows_s -= row_s
                    self._end(is_new, now)
            if prefilling:
                rest_s -= dt * prefill_rate
                if dt == until_prefilled:
                    self._begin_answer(prefilling.pop(0), now, made)
                    rest_s = prefilling[0].prefill_s if prefilling else 0.0
        self.now, self._made, self._ingest_s, self._rest_s = now, made, ingest_s, rest_s
        self._answering = answering

    def _admit(self, now: float, made: float, rest_s: float) -> float:
        """Answers start in the order in which they were given, as soon as their history is there
        and one of the places is free. Returns what is left of the first one's prefill."""
        prefilling, decoding, rest = self._prefilling, self._decoding, []
        places = self._engine.max_parallel - len(prefilling) - len(decoding)
        for job in self.waiting:
            if not places or job.ready_s > now:
                rest.append(job)
                continue
            places -= 1
            if job.prefill_s:
                if not prefilling:
                    rest_s = job.prefill_s
                prefilling.append(job)
                continue
            decoding.append((made + job.tokens, job.row_s, job.is_new))
            self._rows_s += job.row_s
            if job.is_new:
                self._first_token = now
        heapify(decoding)
        self.waiting = rest
        return rest_s

    def _begin_answer(self, job: _Job, now: float, made: float) -> None:
        """The last chunk of a question gives the first token of its answer."""
        if job.is_new:
            self._first_token = now
        else:
            self._others_first += now
        if job.tokens > 1.0:
            heappush(self._decoding, (made + job.tokens - 1.0, job.row_s, job.is_new))
            self._rows_s += job.row_s
        else:
            self._end(job.is_new, now)

    def _end(self, is_new: bool, now: float) -> None:
        self._answered = now
        if is_new:
            self._finished = now
        else:
            self._others += now
