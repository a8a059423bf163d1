"""Names of points in a history."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True, order=True)
class Version:
    """The prefix of a stream's history after its ``n``-th item, within one epoch."""

    stream: str
    epoch: int
    n: int

    def __str__(self) -> str:
        return f"{self.stream}@{self.epoch}.{self.n}"


class VersionState(IntEnum):
    """How far a version has come. Each state includes the ones before it."""

    REGISTERED = 0
    """Its items and their order are fixed."""
    ENCODED = 1
    """The content of all its items is known."""
    PUBLISHED = 2
    """Some engine holds finished KV for it."""
