"""Ranges of trunks on their way to host memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from .core import EngineCore
from .errors import EngineError, ExportError, TrunkError
from .protocol import Boundary, ExportFailed, ExportRange, RangeExported
from .snapshot import Snapshot
from .trunks import Trunks


@dataclass(eq=False)
class _Export:
    request_id: int
    sequence: int
    """Holds the range, whatever becomes of the trunk."""
    ranges: deque[tuple[Boundary, Boundary]]
    snapshots: list[Snapshot] = field(default_factory=list)
    seconds: float = 0.0


class Exports:
    """Requests are carried out in order, one snapshot a step."""

    def __init__(self, core: EngineCore, trunks: Trunks) -> None:
        self._core = core
        self._trunks = trunks
        self._pending: deque[_Export] = deque()

    def accept(self, command: ExportRange) -> None:
        boundaries = command.boundaries
        try:
            ranges = deque(pairwise(boundaries))
            if not ranges or any(a.tokens > b.tokens for a, b in ranges):
                raise TrunkError(
                    f"an export needs two or more boundaries in order, not {len(boundaries)} at "
                    f"tokens {[b.tokens for b in boundaries]}"
                )
            stop = boundaries[-1].tokens
            source = self._trunks.holding(command.trunk, stop).sequence
            sequence = self._core.fork(source, stop, self._core.export_sequences)
        except EngineError as error:
            self._core.emit(ExportFailed(command.request_id, str(error)))
            return
        self._pending.append(_Export(command.request_id, sequence, ranges))

    @property
    def can_transfer(self) -> bool:
        return bool(self._pending)

    def transfer_step(self) -> None:
        """Export one snapshot."""
        export = self._pending[0]
        start, stop = export.ranges.popleft()
        try:
            snapshot, seconds = self._core.export_snapshot(export.sequence, start, stop)
        except ExportError as error:
            self._end(export)
            self._core.emit(ExportFailed(export.request_id, str(error)))
            return
        export.snapshots.append(snapshot)
        export.seconds += seconds
        if not export.ranges:
            self._end(export)
            snapshots = tuple(export.snapshots)
            self._core.emit(RangeExported(export.request_id, snapshots, export.seconds))

    def _end(self, export: _Export) -> None:
        self._pending.remove(export)
        self._core.release(export.sequence, self._core.export_sequences)
