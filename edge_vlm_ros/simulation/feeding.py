"""How a workload reaches the coordinator: as it comes, or strictly one thing after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from .machine import Machine
from .workload import Asked, Frame, Workload

Deliver = Callable[[Frame | Asked], None]


class Feeder(Protocol):
    """Hands over the items of a workload."""

    def begin(self) -> None: ...

    def settled(self) -> None:
        """Everybody has reacted to all that has happened until now."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether all items are on their way."""
        ...


class OpenFeeder:
    """Every item when it comes, whatever else is going on."""

    exhausted = True  # all are in the queue of events from the beginning

    def __init__(self, machine: Machine, workload: Workload, deliver: Deliver) -> None:
        self._machine = machine
        self._workload = workload
        self._deliver = deliver

    def begin(self) -> None:
        for item in self._workload.items:
            self._machine.events.at(item.at, partial(self._deliver, item))

    def settled(self) -> None:
        pass


class SerialFeeder:
    """One item at a time: a frame until it is encoded and computed, a question until it is
    answered. ``is_done`` says whether an item is."""

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        deliver: Deliver,
        is_done: Callable[[Frame | Asked], bool],
    ) -> None:
        self._machine = machine
        self._items = deque(workload.items)
        self._deliver = deliver
        self._is_done = is_done
        self._current: Frame | Asked | None = None
        self._is_scheduled = False

    @property
    def exhausted(self) -> bool:
        return not self._items

    def begin(self) -> None:
        self.settled()

    def settled(self) -> None:
        if self._is_scheduled or not self._items:
            return
        if self._current is not None and not self._is_done(self._current):
            return
        item = self._items.popleft()
        self._is_scheduled = True
        now = self._machine.clock()
        self._machine.events.at(max(now, item.at), lambda: self._hand_over(item))

    def _hand_over(self, item: Frame | Asked) -> None:
        self._is_scheduled = False
        self._current = item
        self._deliver(item)
