"""Boundaries and trunk records made from a few numbers."""

from __future__ import annotations

from edge_vlm_ros.engines.protocol import Boundary, Origin
from edge_vlm_ros.placement.residency import HeldVersion, ResidencyTable, TrunkRecord


def end(n: int, tokens: int, name: str = "") -> Boundary:
    """The end of version ``n``; equal names (or, without one, equal numbers) are equal prefixes."""
    return Boundary(n, tokens, (name or f"{n}/{tokens}").encode().ljust(32, b"."))


ROOT = end(0, 0)


def hold(record: TrunkRecord, *tokens: int, origin: Origin = Origin.COMPUTED) -> TrunkRecord:
    """Have a record hold one version more for each of ``tokens``, its tokens with all before it."""
    for count in tokens:
        boundary = end(record.computed.n + 1, count)
        record.held.append(HeldVersion(boundary, origin))
        record.submitted = boundary
    return record


def trunk(
    table: ResidencyTable, engine: str, stream: str, *tokens: int, epoch: int = 0, used: float = 0.0
) -> TrunkRecord:
    return hold(table.begin(engine, stream, epoch, ROOT, used), *tokens)
