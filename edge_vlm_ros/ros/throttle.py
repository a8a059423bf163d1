"""Saying the same thing only so often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Throttle:
    """Lets one event of a kind through in ``period`` seconds and counts those in between.

    Thread-safe. ``period`` and ``clock`` are functions so that both can change.
    """

    def __init__(
        self, period: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._period = period
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[tuple[str, ...], float] = {}
        self._held: dict[tuple[str, ...], int] = {}

    def passes(self, *kind: str) -> int | None:
        """None: say nothing now. Otherwise how many events of this kind were held back before."""
        now = self._clock()
        with self._lock:
            last = self._last.get(kind)
            if last is not None and now - last < self._period():
                self._held[kind] = self._held.get(kind, 0) + 1
                return None
            self._last[kind] = now
            return self._held.pop(kind, 0)
