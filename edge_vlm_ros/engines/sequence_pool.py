"""The sequence ids of a context."""

from __future__ import annotations

from .errors import NoSequenceError


class SequencePool:
    """Hands out ``n`` ids from ``first`` on; an id given back must be empty in the cache."""

    def __init__(self, n: int, first: int = 0) -> None:
        self.free = set(range(first, first + n))

    def take(self) -> int:
        """Raises NoSequenceError when all are in use."""
        if not self.free:
            raise NoSequenceError("all sequence ids of the engine are in use")
        return self.free.pop()

    def give(self, sequence: int) -> None:
        self.free.add(sequence)
