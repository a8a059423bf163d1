"""What happens when, in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class EventQueue:
    """Actions by time; those of one time in the order in which they were put in."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._order = itertools.count()

    def at(self, time: float, action: Action) -> None:
        heapq.heappush(self._heap, (time, next(self._order), action))

    @property
    def next_time(self) -> float | None:
        """When the first action is due; None when there is none."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Action:
        """Take out the first action. Raises IndexError when there is none."""
        return heapq.heappop(self._heap)[2]
