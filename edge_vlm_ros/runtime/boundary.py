"""Where a version ends, in the words of engines."""

from __future__ import annotations

from edge_vlm_ros.engines.protocol import Boundary
from edge_vlm_ros.history import Epoch


def boundary(epoch: Epoch, n: int) -> Boundary:
    """The end of an encoded version of ``epoch``."""
    return Boundary(n, epoch.tokens(n), epoch.identity(n), epoch.positions(n))
