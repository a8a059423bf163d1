"""A smoothed reading of something measured again and again."""

from __future__ import annotations

WEIGHT = 0.1
"""Weight of the newest value."""


class MovingAverage:
    """Exponentially weighted; starts with the first value added, reads 0 before."""

    def __init__(self) -> None:
        self.value = 0.0
        self._empty = True

    def add(self, value: float) -> None:
        self.value = value if self._empty else self.value + WEIGHT * (value - self.value)
        self._empty = False
