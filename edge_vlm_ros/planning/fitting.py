"""From measured steps to costs: least squares on relative errors, no coefficient below 0; decode
steps by medians for each size of batch."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .costs import BatchCost, MoveCost, RowCost

_ROUNDS = 5
_HUBER = 1.345
"""In standard deviations. 95 % as efficient as plain least squares if errors were normal: the usual
choice for Huber's weights (Huber, Robust Statistics, 1981)."""
_MAD = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""
_SHORTEST_S = 1e-9
_BETTER = 4.0
"""Another choice of coefficients must reduce the squared error by so many times what is left of it
for each degree of freedom (the F statistic that noise exceeds in about one case of 20): else two
kinds of steps with a little noise would be told apart by history."""
_FEWEST = 3
"""Steps of a batch size that are enough to tell what it takes."""


@dataclass(frozen=True)
class RowSample:
    """A step of ``rows`` tokens behind ``history`` tokens each that took ``seconds``."""

    rows: float
    history: float
    seconds: float


@dataclass(frozen=True)
class MoveSample:
    """An export or import of ``n_bytes`` that took ``seconds``."""

    n_bytes: float
    seconds: float


def fit_rows(samples: Sequence[RowSample]) -> RowCost:
    """The cost that fits the steps best. Coefficients that the steps cannot tell apart go to the
    earlier ones of RowCost. Raises ValueError when there are no samples."""
    features = np.array([[1.0, s.rows, s.rows * s.history] for s in samples])
    fixed, row, history = _fit(features, np.array([s.seconds for s in samples]))
    return RowCost(fixed, row, history)


def fit_batches(samples: Sequence[RowSample]) -> BatchCost:
    """The cost of decode steps. Sizes of which there are too few steps are left to their
    neighbours, unless there are no others. Raises ValueError when there are no samples."""
    sizes: dict[int, list[RowSample]] = defaultdict(list)
    for sample in samples:
        sizes[round(sample.rows)].append(sample)
    if not sizes:
        raise ValueError("there is nothing to fit: no step was measured")
    row_history_s = _history_slope(list(sizes.values()))
    enough = min(_FEWEST, max(map(len, sizes.values())))
    steps = [
        (n, statistics.median(s.seconds - n * row_history_s * s.history for s in found))
        for n, found in sorted(sizes.items())
        if len(found) >= enough
    ]
    return BatchCost(tuple((n, max(_SHORTEST_S, s)) for n, s in steps), row_history_s)


def _history_slope(sizes: Sequence[Sequence[RowSample]]) -> float:
    """Seconds for each row and token of history, from steps of the same size behind less and more
    of it. A size counts as the square of what history does to its steps: that is least squares on
    relative errors."""
    total = weights = 0.0
    for samples in sizes:
        middle = (min(s.history for s in samples) + max(s.history for s in samples)) / 2
        halves = (
            [s for s in samples if s.history < middle],
            [s for s in samples if s.history >= middle],
        )
        if min(map(len, halves)) < 2:
            continue
        (h, s), (more, its_s) = map(_middle, halves)
        work = samples[0].rows * (more - h)
        weight = min(map(len, halves)) * (work / s) ** 2
        total += weight * (its_s - s) / work
        weights += weight
    return max(0.0, total / weights) if weights else 0.0


def _middle(samples: Sequence[RowSample]) -> tuple[float, float]:
    """Medians of history and seconds."""
    seconds = statistics.median(sample.seconds for sample in samples)
    return statistics.median(sample.history for sample in samples), max(_SHORTEST_S, seconds)


def fit_moves(samples: Sequence[MoveSample]) -> MoveCost:
    """As ``fit_rows``."""
    features = np.array([[1.0, s.n_bytes] for s in samples])
    fixed, per_byte = _fit(features, np.array([s.seconds for s in samples]))
    return MoveCost(fixed, per_byte)


def _fit(features: NDArray[np.float64], seconds: NDArray[np.float64]) -> list[float]:
    """Coefficients of the columns of ``features`` [n, k]; outliers count less the farther off
    they are."""
    if not len(seconds):
        raise ValueError("there is nothing to fit: no step was measured")
    seconds = np.maximum(seconds, _SHORTEST_S)
    # Divided by what was measured, the errors of short and long steps count the same.
    relative = features / seconds[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), np.finfo(float).tiny)
    weights = np.ones(len(seconds))
    for _ in range(_ROUNDS):
        coefficients = _nonnegative(relative / scale, weights)
        errors = np.abs(relative / scale @ coefficients - 1.0)
        spread = max(_MAD * float(np.median(errors)), 1e-6)
        weights = np.minimum(1.0, _HUBER * spread / np.maximum(errors, 1e-12))
    return [float(c) for c in coefficients / scale]


def _nonnegative(columns: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients >= 0 whose combination of ``columns`` is nearest to 1.

    The best non-negative ones are the unrestricted best of some subset of columns, and there are
    few subsets: all are tried, the small ones and those of earlier columns first.
    """
    n, k = columns.shape
    root = np.sqrt(weights)
    best, best_error = np.zeros(k), np.inf
    for size in range(1, k + 1):
        for chosen in combinations(range(k), size):
            part = columns[:, chosen] * root[:, None]
            found, _, rank, _ = np.linalg.lstsq(part, root, rcond=1e-9)
            if rank < size or (found < 0).any():
                continue
            error = float(np.sum((part @ found - root) ** 2))
            noise = _BETTER * error / max(n - size, 1e-9)
            if best_error - error > noise + 1e-9 * n:
                best, best_error = np.zeros(k), error
                best[list(chosen)] = found
    return best
