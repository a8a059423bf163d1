"""What each kind of step costs on each engine, alone and beside others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from edge_vlm_ros.engines.decode_calls import divide
from edge_vlm_ros.engines.step_record import Activity

ENCODER = "vision"
"""Name of the vision encoder among engines."""

Busy = tuple[str, Activity]
"""An engine or encoder by name, and what it is doing."""


@dataclass(frozen=True)
class RowCost:
    """Seconds of one step that computes ``rows`` tokens behind ``history`` tokens each:
    ``fixed_s + rows * (row_s + row_history_s * history)``.

    Reading the weights is the fixed part, the matrix products grow with the rows, attention with
    rows times history.
    """

    fixed_s: float
    row_s: float
    row_history_s: float

    def seconds(self, rows: float, history: float) -> float:
        return self.fixed_s + rows * (self.row_s + self.row_history_s * history)


@dataclass(frozen=True)
class BatchCost:
    """Seconds of decode steps: ``calls`` has those of one native call by number of answers,
    ascending, behind no history; each answer adds ``row_history_s`` for each token behind which it
    is. A step may be several calls (engines/decode_calls.py).

    A table and no formula: matrix kernels compute rows in tiles of their own, so a call of two
    answers may take three times as long as one of one, and eight no longer than seven. Between
    entries, and beyond the last two, it goes on straight.
    """

    calls: tuple[tuple[int, float], ...]
    row_history_s: float

    def seconds(self, rows: int, history: float) -> float:
        """A step of ``rows`` answers."""
        return self.step_s(rows) + rows * self.row_history_s * history

    def call_s(self, rows: float, history: float) -> float:
        """One native call."""
        return self._base_s(rows) + rows * self.row_history_s * history

    def step_s(self, rows: int) -> float:
        """A step of ``rows`` answers behind no history."""
        return self.steps_s(rows)[rows]

    def steps_s(self, most: int) -> Sequence[float]:
        """Steps of 0 to ``most`` answers behind no history."""
        return _divided_s(self, most)

    def _base_s(self, rows: float) -> float:
        steps = self.calls
        if rows <= steps[0][0] or len(steps) == 1:
            return steps[0][1]
        (n, s), (more, its_s) = next(
            (pair for pair in pairwise(steps) if rows <= pair[1][0]), (steps[-2], steps[-1])
        )
        slope = (its_s - s) / (more - n)
        if rows > more:  # batches larger than all that were measured do not take less
            slope = max(0.0, slope)
        return its_s + slope * (rows - more)

    def times(self, factor: float) -> BatchCost:
        return BatchCost(
            tuple((n, factor * seconds) for n, seconds in self.calls), factor * self.row_history_s
        )


@lru_cache(maxsize=256)
def _divided_s(cost: BatchCost, most: int) -> tuple[float, ...]:
    known = {n: cost.call_s(n, 0.0) for n in range(1, most + 1)}
    return tuple(sum(known[size] for size in sizes if size) for sizes in divide(most, known))


def even_batches(fixed_s: float, row_s: float, row_history_s: float) -> BatchCost:
    """Calls of which every answer takes the same, as in RowCost."""
    return BatchCost(((1, fixed_s + row_s), (2, fixed_s + 2 * row_s)), row_history_s)


@dataclass(frozen=True)
class MoveCost:
    """Seconds of exporting or importing one range: ``fixed_s + n_bytes * byte_s``."""

    fixed_s: float
    byte_s: float

    def seconds(self, n_bytes: float) -> float:
        return self.fixed_s + n_bytes * self.byte_s


@dataclass(frozen=True)
class EngineCosts:
    """One engine's steps with everything else idle."""

    prefill: RowCost
    decode: BatchCost
    export: MoveCost
    import_: MoveCost
    fork_s: float = 0.0

    def prefill_s(self, tokens: float, history: float, chunk_tokens: int) -> float:
        """Computing ``tokens`` behind ``history`` tokens in steps of at most ``chunk_tokens``."""
        if tokens <= 0:
            return 0.0
        whole, rest = divmod(tokens, chunk_tokens)
        steps = whole + (1 if rest else 0)
        mean_history = history + max(0.0, tokens - chunk_tokens) / 2
        cost = self.prefill
        return steps * cost.fixed_s + tokens * (cost.row_s + cost.row_history_s * mean_history)


@dataclass(frozen=True)
class CostModel:
    """All engines and encoders of a runtime, by name.

    ``encode_s`` are seconds a frame. ``slowdowns`` says by what factor a step of the first takes
    longer while the second is at work; a pair that is missing does not disturb each other.
    """

    engines: Mapping[str, EngineCosts]
    encode_s: Mapping[str, float] = field(default_factory=dict)
    slowdowns: Mapping[tuple[Busy, Busy], float] = field(default_factory=dict)

    def slowdown(self, who: str, activity: Activity, others: Iterable[Busy]) -> float:
        """How many times longer ``activity`` of ``who`` takes beside ``others``.

        Factors of several others are multiplied.
        """
        factor = 1.0
        for other in others:
            if other[0] != who:
                factor *= self.slowdowns.get(((who, activity), other), 1.0)
        return factor
