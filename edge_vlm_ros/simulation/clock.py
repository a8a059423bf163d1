"""Time that passes only when it is told to."""

from __future__ import annotations


class VirtualClock:
    """Call it for the time in seconds, as one would ``time.monotonic``."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance_to(self, time: float) -> None:
        """Raises ValueError when ``time`` lies in the past."""
        if time < self._now:
            raise ValueError(f"virtual time cannot go back from {self._now} s to {time} s")
        self._now = time
