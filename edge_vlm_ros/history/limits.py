"""Bounds of a history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FullPolicy = Literal["drop_oldest", "reject"]


@dataclass(frozen=True)
class HistoryLimits:
    """Bounds of a history and what happens when they are reached.

    With ``drop_oldest`` a new epoch starts with the newest ``keep_frames`` frames, the turns
    committed after them and as many older turns as make ``max_turns``; all of it is computed
    again, ahead where it is known before (see successor.py). Raises ValueError for values that
    contradict each other.
    """

    max_tokens: int
    max_frames: int
    keep_frames: int
    max_turns: int
    policy: FullPolicy = "drop_oldest"

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.max_frames < 1 or self.max_turns < 0:
            raise ValueError("max_tokens and max_frames must be at least 1, max_turns at least 0")
        if not 0 <= self.keep_frames < self.max_frames:
            raise ValueError(
                f"keep_frames ({self.keep_frames}) must be at least 0 and below max_frames "
                f"({self.max_frames}): dropping must make room for a new frame"
            )
        if self.policy not in ("drop_oldest", "reject"):
            raise ValueError(f"unknown policy {self.policy!r}: use drop_oldest or reject")
