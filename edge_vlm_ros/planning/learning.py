"""Corrects measured or guessed costs by what steps really take."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

from edge_vlm_ros.engines.step_record import Activity, StepRecord

from .costs import Busy, CostModel, EngineCosts, MoveCost, RowCost
from .overlaps import Company, Overlaps, as_cost
from .smoothing import RobustLevel

_FOLLOWS_S = 2.0
"""A correction is mostly about the last so many seconds of work of its kind."""
_LEAST_WEIGHT, _MOST_WEIGHT = 0.02, 0.3
_RECENT = 256
"""Steps of each kind in the errors."""
_ALONE, _BESIDE = 0.1, 0.8
"""A step ran alone when all others together were at work for less than this part of it, and beside
one thing when that went on for more than this part of it and nothing else for more than _ALONE."""
_FEWEST_ALONE = 5
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

    __slots__ = ("correction", "n_alone", "errors")

    def __init__(self) -> None:
        self.correction = RobustLevel()
        """Of the logarithm of the factor."""
        self.n_alone = 0
        self.errors: deque[float] = deque(maxlen=_RECENT)


class CostLearner:
    """Follows slow changes (heat, other programs) and mends wrong guesses. Used by one thread.

    Each kind of step has one factor, and each pair of things that disturb each other another one;
    how a cost depends on rows, history and bytes stays as in ``base``. What a step says is taken to
    be about its pair when it ran beside exactly one other thing and enough steps of its kind have
    been seen without company; otherwise about its kind.
    """

    def __init__(self, base: CostModel) -> None:
        self._base = base
        self._overlaps = Overlaps([*base.engines, *base.encode_s])
        self._kinds: dict[Busy, _Kind] = {}
        self._pairs: dict[Pair, RobustLevel] = {}
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
                exp(kind.correction.level),
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
        faster = self._progress(busy, seconds, company) if company else 1.0
        correction = kind.correction
        # How much longer it took than expected, as a logarithm.
        surprise = log(seconds * faster / base) - correction.level
        kind.errors.append(exp(abs(surprise)) - 1.0)
        weight = min(_MOST_WEIGHT, max(_LEAST_WEIGHT, seconds / _FOLLOWS_S))
        self._model = None
        pair = _pair(busy, seconds, company) if company else None
        if pair is not None and kind.n_alone >= _FEWEST_ALONE:
            self._learn_pair(pair, surprise, weight)
            return
        if pair is None:
            kind.n_alone += sum(company.values()) < _ALONE * seconds
        correction.add(correction.level + surprise, weight)

    def _learn_pair(self, pair: Pair, surprise: float, weight: float) -> None:
        level = self._pairs.get(pair)
        if level is None:
            level = self._pairs[pair] = RobustLevel()
            level.n = 1  # what it begins with counts as seen
        level.add(level.level + surprise, weight)
        known = self._base.slowdowns.get(pair, 1.0)
        # Nobody gets faster by company.
        level.level = max(level.level, -log(known))
        self._factors[pair] = known * exp(level.level)

    def _progress(self, busy: Busy, seconds: float, company: Company) -> float:
        """Work done in a second of a step with such company, in seconds of work done alone."""
        slowed: dict[str, float] = {}
        for other, beside in company.items():
            factor = self._factors.get((busy, other))
            if factor is not None:
                lost = beside / seconds * (1.0 - 1.0 / factor)
                slowed[other[0]] = slowed.get(other[0], 0.0) + lost
        progress = 1.0
        for lost in slowed.values():
            progress *= 1.0 - lost
        return progress

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
        return 1.0 if kind is None else exp(kind.correction.level)


def _pair(busy: Busy, seconds: float, company: Company) -> Pair | None:
    """Whom a step ran beside, if that was exactly one thing nearly all the time."""
    other = max(company, key=company.__getitem__)
    longest = company[other]
    if longest < _BESIDE * seconds or sum(company.values()) - longest > _ALONE * seconds:
        return None
    return busy, other


def _rows(cost: RowCost, factor: float) -> RowCost:
    return RowCost(cost.fixed_s * factor, cost.row_s * factor, cost.row_history_s * factor)


def _move(cost: MoveCost, factor: float) -> MoveCost:
    return MoveCost(cost.fixed_s * factor, cost.byte_s * factor)
