"""Measures what the steps of one engine cost while everything else is idle."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AppendToTrunk,
    Boundary,
    Command,
    DropTrunk,
    ExportRange,
    ForkTrunk,
    ImportIntoTrunk,
    RangeExported,
    StartAnswer,
    TokenSegment,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.engines.snapshot import Snapshot
from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.planning.costs import EngineCosts, even_batches
from edge_vlm_ros.planning.fitting import MoveSample, RowSample, fit_batches, fit_moves, fit_rows

from .engine_talk import EngineTalk

_START = Boundary(0, 0, bytes(32))
_TRUNK = TrunkId("calibration", 0)
_COPY = TrunkId("calibration", 1)
_ENOUGH = 8
"""Samples of each kind that are worth waiting for."""
_PASSES = 4
_ANSWER_TOKENS = 5
_PROMPT_TOKENS = 4
_LEAST_HISTORY = 256
"""Tokens of history to be seen, whatever it takes: what they add to a step is little beside its
noise, and behind a real history it is much."""
_LOAD_ANSWERS = 4
"""Decoded at once as a load beside others. One alone reads all weights for a single row, and is
slowed down by others that use the memory as several rows at once are not."""
_ROUND_S = 0.2
"""How long one round of a load takes, about: nothing can be looked at in between."""
_SHARES = (0.6, 0.25, 0.15)
"""Parts of the time for prefill, decoding and moves."""


@dataclass(frozen=True)
class EngineRoom:
    """What may be used of an engine.

    ``config`` is the engine's. ``history`` is the longest history in tokens, ``answer`` the most
    tokens of a question with its answer, ``answers`` how many may be under way at once. ``tokens``
    are what histories and questions are made of.
    """

    config: EngineConfig
    history: int
    answer: int
    answers: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Load:
    """Work that can be repeated: ``commands``, which end with ``n_events`` things done.

    ``activities`` is what it is about; it may contain a little of others.
    """

    activities: tuple[Activity, ...]
    commands: tuple[Command, ...]
    n_events: int

    @property
    def disturbs(self) -> bool:
        """Whether it goes on long enough to slow down others: moves are short."""
        return self.activities != (Activity.EXPORT, Activity.IMPORT)


class EngineBench:
    """An engine with a history to measure on; ``clear`` removes it.

    Time limits are what is aimed at: a slow engine takes longer, as each kind of step must have
    been measured once. All methods raise EngineError when the engine fails.
    """

    def __init__(
        self,
        talk: EngineTalk,
        name: str,
        room: EngineRoom,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._talk, self.name, self._room, self._clock = talk, name, room, clock
        self._boundaries = [_START]
        self._prompt = self._tokens(0, max(1, min(_PROMPT_TOKENS, room.answer - 1)))
        self._most_answer = max(1, room.answer - len(self._prompt))
        self._n_answer = min(_ANSWER_TOKENS, self._most_answer)
        self._batches = _batch_sizes(room, talk.batching(name))
        self._stops_early = False
        self._seed = 0

    def measure(self, seconds: float) -> EngineCosts:
        """All costs but slowdowns."""
        self._warm_up()
        began = self._clock()
        deadlines = [began + seconds * sum(_SHARES[: i + 1]) for i in range(len(_SHARES))]
        prefill = self._measure_prefill(deadlines[0])
        chunks = fit_rows(prefill)
        decode = self._measure_decode(deadlines[1])
        exports, imports = self._measure_moves(deadlines[2])
        return EngineCosts(
            prefill=chunks,
            # A model that ends every answer at once decodes nothing: then a token is a short chunk.
            decode=fit_batches(decode) if decode else even_batches(*astuple(chunks)),
            export=fit_moves(exports),
            import_=fit_moves(imports),
            fork_s=self._measure_fork(),
        )

    def loads(self, costs: EngineCosts) -> tuple[Load, ...]:
        """Work of each kind, in the middle of the history that ``measure`` has made."""
        middle = self._boundaries[len(self._boundaries) // 2]
        rows = min(self._chunk, self._limit)
        n = min(_times(costs.prefill.seconds(rows, middle.tokens)), max(1, self._limit // rows))
        chunk = TokenSegment(self._tokens(middle.tokens, rows))
        fork = ForkTrunk(_TRUNK, _COPY, middle)
        append = AppendToTrunk(_COPY, middle.n + 1, (chunk,) * n)
        batch = min(_LOAD_ANSWERS, self._batches[-1])
        # They begin one after the other, a decode step apart: as many steps again have all of them.
        n = min(2 * batch, self._most_answer)
        answers = [self._answer(i, middle, self._random(), n) for i in range(batch)]
        moved = self._movable[-1]
        export = ExportRange(0, _TRUNK, (_START, moved))
        snapshot = self._talk.ask(self.name, export, RangeExported).snapshots[0]
        import_ = ImportIntoTrunk(_COPY, _START, moved, snapshot)
        drop = DropTrunk(_COPY)
        return (
            Load((Activity.PREFILL,), (drop, fork, append), 2),
            Load((Activity.DECODE,), tuple(answers), len(answers)),
            Load((Activity.EXPORT, Activity.IMPORT), (drop, export, import_), 2),
        )

    def clear(self) -> None:
        """Leave the engine as it was."""
        self._talk.submit(self.name, DropTrunk(_TRUNK), DropTrunk(_COPY))
        self._talk.take_steps(self.name)

    # ---------------------------------------------------------------- prefill
    @property
    def _chunk(self) -> int:
        return self._room.config.chunk_tokens

    @property
    def _limit(self) -> int:
        """Tokens of the history: as much again must fit beside it, and the longest answer."""
        free = self._talk.n_cells(self.name) - self._room.answer
        return max(1, min(self._room.history, free // 2))

    def _warm_up(self) -> None:
        """The first steps of an engine allocate and read files."""
        stop = self._boundary(1, min(self._chunk, self._limit))
        self._append(_COPY, _START, stop)
        command = self._answer(0, stop, self._sampling(), min(2, self._n_answer), _COPY)
        self._talk.ask(self.name, command, AnswerFinished)
        self._talk.submit(self.name, DropTrunk(_COPY))
        self._talk.take_steps(self.name)

    def _measure_prefill(self, deadline: float) -> list[RowSample]:
        """Make the history, and repeat it in a copy as long as there is time."""
        began = self._clock()
        records: list[StepRecord] = []
        for tokens in self._levels():
            start = self._boundaries[-1]
            seen = start.tokens >= min(_LEAST_HISTORY, self._limit)
            if seen and self._time_for(tokens, records) > deadline:
                break
            stop = self._boundary(start.n + 1, tokens)
            self._append(_TRUNK, start, stop)
            self._boundaries.append(stop)
            records += self._talk.take_steps(self.name)
        took = self._clock() - began
        for _ in range(_PASSES - 1):
            if self._clock() + took > deadline:
                break
            for start, stop in pairwise(self._boundaries):
                self._append(_COPY, start, stop)
            self._talk.submit(self.name, DropTrunk(_COPY))
            records += self._talk.take_steps(self.name)
        return [RowSample(r.rows, r.history_tokens, r.seconds) for r in records]

    def _levels(self) -> Iterator[int]:
        """Lengths of the history: after a short and a whole chunk the least that is to be seen,
        then each twice the one before."""
        limit, short = self._limit, max(1, self._chunk // 4)
        levels = [short, short + self._chunk, _LEAST_HISTORY]
        while levels[-1] < limit:
            levels.append(2 * levels[-1])
        yield from sorted({level for level in levels if level < limit})
        yield limit

    def _time_for(self, tokens: int, records: Sequence[StepRecord]) -> float:
        """When the history would have ``tokens`` tokens, if that goes on as fast as now."""
        last = records[-1]
        steps = (tokens - self._boundaries[-1].tokens) / max(1, last.rows)
        return self._clock() + steps * last.seconds

    def _append(self, trunk: TrunkId, start: Boundary, stop: Boundary) -> None:
        """Chunks of several sizes, so that each is seen behind histories of several lengths."""
        at, segments = start.tokens, list[TokenSegment]()
        sizes = [self._chunk, max(1, self._chunk // 4), max(1, self._chunk // 2)]
        while at < stop.tokens:
            n = min(sizes[len(segments) % len(sizes)], stop.tokens - at)
            segments.append(TokenSegment(self._tokens(at, n)))
            at += n
        self._talk.ask(self.name, AppendToTrunk(trunk, stop.n, tuple(segments)), VersionComputed)

    def _tokens(self, start: int, n: int) -> tuple[int, ...]:
        tokens = self._room.tokens
        return tuple(tokens[i % len(tokens)] for i in range(start, start + n))

    @staticmethod
    def _boundary(n: int, tokens: int) -> Boundary:
        return Boundary(n, tokens, b"calibration %d" % n + bytes(32 - len(b"calibration %d" % n)))

    # ---------------------------------------------------------------- decoding
    def _measure_decode(self, deadline: float) -> list[RowSample]:
        """Answers behind a short history, in batches of all sizes in turn; behind the long one,
        which says what history adds, only in the smallest and largest."""
        short, long = self._boundaries[1], self._boundaries[-1]
        shapes = [(batch, short) for batch in self._batches]
        shapes += [(batch, long) for batch in sorted({self._batches[0], self._batches[-1]})]
        samples: dict[tuple[int, Boundary], list[RowSample]] = {shape: [] for shape in shapes}
        for number in range(_ENOUGH):
            if number and self._clock() > deadline:
                break
            for batch, start in shapes:
                found = samples[batch, start]
                # One round of each must be, whatever it takes.
                if len(found) >= _ENOUGH or (number and self._clock() > deadline):
                    continue
                found += self._answers(batch, start)
            if all(len(found) >= _ENOUGH for found in samples.values()):
                break
        return [sample for found in samples.values() for sample in found]

    def _answers(self, batch: int, start: Boundary) -> list[RowSample]:
        """Let so many answers run at once. They begin one after the other, a decode step apart, so
        each gets as many tokens more as there are others."""
        self._talk.take_steps(self.name)
        sampling, n = self._sampling(), min(self._n_answer + batch - 1, self._most_answer)
        for answer_id in range(batch):
            command = self._answer(answer_id, start, sampling, n)
            self._talk.submit(self.name, command)
        for _ in range(batch):
            self._talk.wait()
        steps = self._talk.take_steps(self.name)
        decoded = [s for s in steps if s.activity is Activity.DECODE]
        if sum(s.rows for s in decoded) < batch * (n - 1) // 2:
            self._stops_early = True
        return [RowSample(s.rows, s.history_tokens, s.seconds) for s in decoded]

    def _sampling(self) -> SamplingParameters:
        """Greedy, unless the model then ends its answers early: what comes does not matter here."""
        return self._random() if self._stops_early else SamplingParameters()

    def _random(self) -> SamplingParameters:
        """So hot that one of many likely tokens is as good as another: few of them are an end."""
        self._seed += 1
        return SamplingParameters(temperature=10.0, top_k=40, seed=self._seed)

    def _answer(
        self,
        answer_id: int,
        start: Boundary,
        sampling: SamplingParameters,
        n_tokens: int,
        trunk: TrunkId = _TRUNK,
    ) -> StartAnswer:
        return StartAnswer(answer_id, trunk, start, self._prompt, n_tokens, sampling, ())

    # ---------------------------------------------------------------- moves
    @property
    def _movable(self) -> list[Boundary]:
        """Ends of the ranges to be moved, shortest first."""
        boundaries = self._boundaries[1:]
        most = self._room.config.transfer_tokens
        return [b for b in boundaries if b.tokens <= most] or boundaries[:1]

    def _measure_moves(self, deadline: float) -> tuple[list[MoveSample], list[MoveSample]]:
        steps: list[StepRecord] = []
        for number in range(_ENOUGH):
            if number and self._clock() > deadline:
                break
            for stop in self._movable:
                snapshot = self._export(stop)
                import_ = ImportIntoTrunk(_COPY, _START, stop, snapshot)
                self._talk.ask(self.name, import_, VersionComputed)
                self._talk.submit(self.name, DropTrunk(_COPY))
            steps += self._talk.take_steps(self.name)
        return _moves(steps, Activity.EXPORT), _moves(steps, Activity.IMPORT)

    def _export(self, stop: Boundary) -> Snapshot:
        command = ExportRange(0, _TRUNK, (_START, stop))
        return self._talk.ask(self.name, command, RangeExported).snapshots[0]

    def _measure_fork(self) -> float:
        """Seconds from the command to the event: there is no step to look at."""
        times = []
        for _ in range(_ENOUGH):
            began = self._clock()
            fork = ForkTrunk(_TRUNK, _COPY, self._boundaries[-1])
            self._talk.ask(self.name, fork, VersionComputed)
            times.append(self._clock() - began)
            self._talk.submit(self.name, DropTrunk(_COPY))
        return statistics.median(times)


def _batch_sizes(room: EngineRoom, batching: bool) -> tuple[int, ...]:
    """All up to four, then farther and farther apart: the tiles of kernels are small."""
    most = min(room.config.max_parallel, room.answers) if batching else 1
    sizes = [1, 2, 3, 4]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + max(2, sizes[-1] // 3))
    return tuple(sorted({min(size, most) for size in sizes}))


def _times(seconds: float, least: int = 1, most: int = 4) -> int:
    """How often a step is repeated in one round of a load."""
    return max(min(least, most), min(most, int(_ROUND_S / max(seconds, 1e-6))))


def _moves(steps: Sequence[StepRecord], activity: Activity) -> list[MoveSample]:
    return [MoveSample(s.n_bytes, s.seconds) for s in steps if s.activity is activity]
