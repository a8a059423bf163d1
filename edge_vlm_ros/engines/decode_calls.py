"""How the answers of a decode step are divided among native calls."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf

WORTH = 0.1
"""Several calls must save so much of what a single one takes: times vary."""
_RECENT = 9
"""Calls of each size that are remembered."""
_FEWEST = 3
"""Calls of a size that tell what it takes."""
_AGAIN = 64
"""Steps after which a single call is tried once more, and divided anew: clocks and neighbours
change."""


def divide(most: int, call_s: Mapping[int, float]) -> list[tuple[int, ...]]:
    """Sizes of the calls that take least for 0 to ``most`` answers, by the seconds that calls of
    some sizes take; a single call unless its time is known and others save WORTH of it.

    Matrix kernels compute rows in tiles: a call of two rows can take three times as long as one of
    one row, a call of eight no longer than one of seven.
    """
    least, last = [0.0], [0]
    for n in range(1, most + 1):
        ways = [(seconds + least[n - size], size) for size, seconds in call_s.items() if size <= n]
        seconds, size = min(ways, default=(inf, n))
        least.append(seconds)
        last.append(size)
    return [
        _sizes(n, last) if least[n] < (1.0 - WORTH) * call_s.get(n, 0.0) else (n,)
        for n in range(most + 1)
    ]


def _sizes(n: int, last: Sequence[int]) -> tuple[int, ...]:
    sizes = []
    while n:
        sizes.append(last[n])
        n -= last[n]
    return tuple(sizes)


class DecodeCalls:
    """Divides by what calls of each size took lately. Used by the engine's thread."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._known: dict[int, float] = {}
        self._divided: list[tuple[int, ...]] = []
        self._steps = 0

    def sizes(self, n: int) -> tuple[int, ...]:
        """Of the calls for a step of ``n`` answers."""
        if n >= len(self._divided):
            self._divided = divide(n, self._known)
        self._steps += 1
        return self._divided[n] if self._steps % _AGAIN else (n,)

    def note(self, size: int, seconds: float) -> None:
        """A call of so many answers took so long."""
        recent = self._recent.setdefault(size, deque(maxlen=_RECENT))
        recent.append(seconds)
        if len(recent) < _FEWEST:
            return
        is_new = size not in self._known
        self._known[size] = statistics.median(recent)
        if is_new or self._steps % _AGAIN == 0:
            self._divided = []
