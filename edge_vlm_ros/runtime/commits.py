"""When finished answers enter their histories."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from .config import CommitOrder

_T = TypeVar("_T")


class CommitOrderQueue(Generic[_T]):
    """Holds finished answers back until it is their turn.

    In order of ``completion`` nobody waits. In order of ``arrival`` an answer waits for those
    that were asked for before it about the same stream and are to be committed too.
    """

    def __init__(self, order: CommitOrder) -> None:
        self._order = order
        self._expected: dict[str, deque[int]] = {}
        self._finished: dict[int, _T] = {}

    def __len__(self) -> int:
        """Finished answers that wait for their turn."""
        return len(self._finished)

    def expect(self, stream: str, answer_id: int) -> None:
        """A question was accepted whose answer is to be committed."""
        self._expected.setdefault(stream, deque()).append(answer_id)

    def finish(self, stream: str, answer_id: int, finished: _T) -> list[_T]:
        """An expected answer has ended; returns those whose turn it is now, in order."""
        expected = self._expected[stream]
        self._finished[answer_id] = finished
        if self._order == "completion":
            expected.remove(answer_id)
            return [self._finished.pop(answer_id)]
        due = []
        while expected and expected[0] in self._finished:
            due.append(self._finished.pop(expected.popleft()))
        return due
