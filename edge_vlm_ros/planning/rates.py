"""How often something has happened lately."""

from __future__ import annotations

import math

TIME_CONSTANT_S = 30.0
"""What happened so long ago counts 1/e of what happens now."""

SHORTEST_S = 10.0
"""What happens within so little time is counted as if it took this long: a burst is no rate."""


class EventRate:
    """Events a second with exponential forgetting; 0 before the second event.

    The weight of n regular events at rate r, the first left out, tends to
    r * T * (1 - exp(-t / T)) after t seconds, with the time constant T: divided by this, the
    estimate is right as soon as ``SHORTEST_S`` have passed.
    """

    def __init__(self, time_constant_s: float = TIME_CONSTANT_S) -> None:
        self._time_constant_s = time_constant_s
        self._weight = 0.0
        self._first: float | None = None
        self._last = 0.0

    def add(self, now: float) -> None:
        """An event, not before the one added last. ``now`` is in seconds."""
        if self._first is None:
            self._first = self._last = now
            return
        self._weight = self._decayed(now) + 1.0
        self._last = now

    def value(self, now: float) -> float:
        """Events a second."""
        if self._first is None or now <= self._first:
            return 0.0
        seconds = max(SHORTEST_S, now - self._first)
        passed = 1.0 - math.exp(-seconds / self._time_constant_s)
        return self._decayed(now) / (self._time_constant_s * passed)

    def _decayed(self, now: float) -> float:
        return self._weight * math.exp(min(0.0, self._last - now) / self._time_constant_s)


class Fractions:
    """Which part of what has happened lately was of each kind."""

    def __init__(self, time_constant_s: float = TIME_CONSTANT_S) -> None:
        self._time_constant_s = time_constant_s
        self._weights: dict[str, float] = {}
        self._last = 0.0

    def add(self, kind: str, now: float) -> None:
        """An event, not before the one added last. ``now`` is in seconds."""
        self._fade(now)
        self._weights[kind] = self._weights.get(kind, 0.0) + 1.0

    def correct(self, before: str, kind: str, at: float, now: float) -> None:
        """An event that was added at ``at`` as ``before`` is of another kind."""
        self._fade(now)
        weight = math.exp((at - now) / self._time_constant_s)
        self._weights[before] = max(0.0, self._weights.get(before, 0.0) - weight)
        self._weights[kind] = self._weights.get(kind, 0.0) + weight

    def _fade(self, now: float) -> None:
        fade = math.exp((self._last - now) / self._time_constant_s)
        self._weights = {name: weight * fade for name, weight in self._weights.items()}
        self._last = now

    def of(self, kind: str) -> float:
        """0 to 1; 0 before the first event."""
        total = sum(self._weights.values())
        return self._weights.get(kind, 0.0) / total if total else 0.0
