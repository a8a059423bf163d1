"""What reaches the coordinator's queue from outside; engines and encoders add their events."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from edge_vlm_ros.vision.encoder import RgbImage


@dataclass(frozen=True, eq=False)
class FrameArrived:
    """A camera frame, uint8 [H, W, 3]; ``received_at`` is a reading of the monotonic clock in
    seconds."""

    stream: str
    rgb: RgbImage
    stamp_ns: int
    received_at: float


@dataclass(frozen=True)
class InvalidFrame:
    """A camera message that could not be converted to a frame."""

    stream: str


@dataclass(frozen=True)
class CancelRequested:
    answer_id: int


@dataclass(frozen=True, eq=False)
class Call:
    """Run ``function`` on the coordinator's thread and put its outcome into ``reply``."""

    function: Callable[[], Any]
    reply: Future[Any]


@dataclass(frozen=True)
class Stop:
    """The last message: the coordinator's loop ends."""
