"""Corrects measured or guessed costs by what steps really take."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple

from edge_vlm_ros.engines.step_record import Activity, StepRecord

from .costs import Busy, CostModel, EngineCosts, MoveCost, RowCost
from .overlaps import Company, Overlaps, as_cost
from .smoothing import RobustErrors

_FOLLOWS_S = 2.0
"""A correction is mostly about the last so many seconds of work of its kind."""
_LEAST_WEIGHT, _MOST_WEIGHT = 0.02, 0.3
_KNOWN = 10
"""What is known at start counts as so many steps."""
_RECENT = 256
"""Steps of each kind in the errors."""
_OF_PAIRS = 4.0
"""How much more readily the slowdown of a pair is corrected than a kind of step: kinds are measured
alone at start. Over the recorded steps of a soak a quarter to four made hardly a difference."""
MOST_SLOWDOWN = 16.0
"""What takes longer than so many times beside something else is not disturbed by that alone. A
bound so wide that nothing measured came near it; slowdowns were 1 to 2."""
_SHORTEST_S = 1e-9

Pair = tuple[Busy, Busy]


@dataclass(frozen=True)
class CostError:
    """How far the last ``n`` steps of one kind were from what was expected before each of them.

    An error is the larger by the smaller less 1: 0 is right, 1 is off by a factor of two.
    ``error`` is the median, ``mean`` the mean. ``factor`` is what the costs are multiplied by now.
    """

    n: int
    error: float
    mean: float
    factor: float


class _Kind:
    """Steps of one activity of one engine or encoder."""

    __slots__ = ("correction", "surprises", "errors")

    def __init__(self) -> None:
        self.correction = 0.0
        """Logarithm of the factor."""
        self.surprises = RobustErrors()
        self.errors: deque[float] = deque(maxlen=_RECENT)


class _Beside(NamedTuple):
    """What a step did beside one activity of another."""

    pair: Pair
    factor: float
    """The slowdown as it is known."""
    part: float
    """Of the step's time."""


class CostLearner:
    """Follows slow changes (heat, other programs) and mends wrong guesses. Used by one thread.

    Each kind of step has one factor, and each pair of things that disturb each other another one;
    how a cost depends on rows, history and bytes stays as in ``base``. Factors are smoothed
    exponentially, as logarithms. What a step says is divided among its kind and all that it ran
    beside, in proportion to how much each would change what was expected of it: the step of
    normalised least mean squares (Haykin, Adaptive Filter Theory, chapter 6).
    """

    def __init__(self, base: CostModel) -> None:
        self._base = base
        self._overlaps = Overlaps([*base.engines, *base.encode_s])
        self._kinds: dict[Busy, _Kind] = {}
        self._factors: dict[Pair, float] = dict(base.slowdowns)
        self._model: CostModel | None = base

    def observe(self, records: Mapping[str, Sequence[StepRecord]]) -> None:
        """Take the new steps of all engines and encoders, by name, oldest first.

        All times are of one monotonic clock. A step is made use of as soon as it is known what else
        was going on meanwhile: when every other has ended a later step, or after 3 seconds.
        """
        self._overlaps.add(records)
        for name, step, company in self._overlaps.settled():
            self._learn(name, step, company)

    def model(self) -> CostModel:
        """The costs as they are now."""
        if self._model is None:
            self._model = CostModel(
                {name: self._engine(name, costs) for name, costs in self._base.engines.items()},
                {
                    name: seconds * self._factor(name, Activity.ENCODE)
                    for name, seconds in self._base.encode_s.items()
                },
                dict(self._factors),
            )
        return self._model

    def errors(self) -> dict[Busy, CostError]:
        """By engine or encoder, and activity (histories count as PREFILL): what has been seen."""
        return {
            busy: CostError(
                len(kind.errors),
                statistics.median(kind.errors),
                statistics.fmean(kind.errors),
                exp(kind.correction),
            )
            for busy, kind in self._kinds.items()
        }

    def _learn(self, name: str, step: StepRecord, company: Company) -> None:
        seconds = step.seconds if step.seconds > _SHORTEST_S else _SHORTEST_S
        busy = (name, as_cost(step.activity))
        base = self._base_seconds(busy, step)
        if base <= 0.0:
            return
        kind = self._kinds.get(busy)
        if kind is None:
            kind = self._kinds[busy] = _Kind()
        beside = self._beside(busy, seconds, company)
        speeds = _speeds(beside)
        expected = log(base) + kind.correction - sum(map(log, speeds.values()))
        surprise = log(seconds) - expected
        kind.errors.append(exp(abs(surprise)) - 1.0)
        bounded = kind.surprises.bounded(surprise)
        weight = min(_MOST_WEIGHT, max(_LEAST_WEIGHT, seconds / _FOLLOWS_S))
        # The first ones count more: there is little to be smoothed with yet.
        change = bounded * max(weight, 1.0 / (_KNOWN + kind.surprises.n))
        self._model = None
        # By how much each logarithm of a factor changes what is expected.
        slopes = [part / factor / speeds[pair[1][0]] for pair, factor, part in beside]
        total = 1.0 + _OF_PAIRS * sum(slope * slope for slope in slopes)
        kind.correction += change / total
        for (pair, factor, _), slope in zip(beside, slopes, strict=True):
            now = factor * exp(_OF_PAIRS * slope * change / total)
            # Nobody gets faster by company.
            now = min(MOST_SLOWDOWN, max(1.0, now))
            if now != factor:
                self._factors[pair] = now

    def _beside(self, busy: Busy, seconds: float, company: Company) -> list[_Beside]:
        """What another did counts once, even if several encoders of one name did it."""
        totals: dict[str, float] = {}
        for other, its_s in company.items():
            totals[other[0]] = totals.get(other[0], 0.0) + its_s
        beside = []
        for other, its_s in company.items():
            pair, part = (busy, other), its_s / max(seconds, totals[other[0]])
            beside.append(_Beside(pair, self._factors.get(pair, 1.0), part))
        return beside

    def _base_seconds(self, busy: Busy, step: StepRecord) -> float:
        """What the step would take alone, uncorrected."""
        name, activity = busy
        if activity is Activity.ENCODE:
            return self._base.encode_s.get(name, 0.0)
        costs = self._base.engines.get(name)
        if costs is None:
            return 0.0
        if activity is Activity.DECODE:
            return costs.decode.call_s(step.rows, step.history_tokens)
        if activity is Activity.PREFILL:
            return costs.prefill.seconds(step.rows, step.history_tokens)
        move = costs.export if activity is Activity.EXPORT else costs.import_
        return move.seconds(step.n_bytes)

    def _engine(self, name: str, costs: EngineCosts) -> EngineCosts:
        return EngineCosts(
            prefill=_rows(costs.prefill, self._factor(name, Activity.PREFILL)),
            decode=costs.decode.times(self._factor(name, Activity.DECODE)),
            export=_move(costs.export, self._factor(name, Activity.EXPORT)),
            import_=_move(costs.import_, self._factor(name, Activity.IMPORT)),
            fork_s=costs.fork_s,
        )

    def _factor(self, name: str, activity: Activity) -> float:
        kind = self._kinds.get((name, activity))
        return 1.0 if kind is None else exp(kind.correction)


def _speeds(beside: Sequence[_Beside]) -> dict[str, float]:
    """Work done beside each other engine or encoder in a second of a step, in seconds of work done
    alone; above 0, as no factor is larger than MOST_SLOWDOWN."""
    speeds: dict[str, float] = {}
    for (_, other), factor, part in beside:
        speeds[other[0]] = speeds.get(other[0], 1.0) - part * (1.0 - 1.0 / factor)
    return speeds


def _rows(cost: RowCost, factor: float) -> RowCost:
    return RowCost(cost.fixed_s * factor, cost.row_s * factor, cost.row_history_s * factor)


def _move(cost: MoveCost, factor: float) -> MoveCost:
    return MoveCost(cost.fixed_s * factor, cost.byte_s * factor)
