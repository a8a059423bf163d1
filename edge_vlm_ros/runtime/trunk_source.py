"""What a history on an engine is made from."""

from __future__ import annotations

from typing import Protocol

from edge_vlm_ros.engines.protocol import Segment
from edge_vlm_ros.history import Epoch


class TrunkSource(Protocol):
    """What is needed of a stream to put its history onto an engine."""

    @property
    def name(self) -> str: ...

    def segments(self, epoch: Epoch, n: int) -> tuple[Segment, ...]:
        """What item ``n`` (from 1) of an epoch is computed from; the item is encoded."""
        ...
