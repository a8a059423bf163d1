"""What engines will have of histories, and what they have room for: for plans."""

from __future__ import annotations

from collections.abc import Callable

from edge_vlm_ros.history import Epoch
from edge_vlm_ros.placement.residency import ResidencyTable, TrunkRecord
from edge_vlm_ros.placement.snapshot_cache import SnapshotCache

from .boundary import boundary
from .engine_slots import EngineSlots
from .exports import Exports


class TrunkOutlook:
    """Reads only. ``capacity`` gives the cells of an engine that histories may take together."""

    def __init__(
        self,
        table: ResidencyTable,
        snapshots: SnapshotCache,
        exports: Exports,
        slots: EngineSlots,
        capacity: Callable[[str], int],
    ) -> None:
        self._table = table
        self._snapshots = snapshots
        self._exports = exports
        self._slots = slots
        self._capacity = capacity

    def cached(self, stream: str, epoch: Epoch, n: int, engine: str) -> int:
        """Tokens of version ``n``, which is encoded, that ``engine`` would have with what lies in
        host memory; 0 when that is of no use."""
        record = self._table.get(engine, stream, epoch.number)
        start = 0 if record is None else record.submitted.n
        if start >= n or not len(self._snapshots):
            return 0
        layout = self._slots.engine(engine).layout
        ends = [boundary(epoch, at) for at in range(start, n + 1)]
        reached = self._snapshots.reach(layout, ends)
        return reached.tokens if reached.n > start else 0

    def free_cells(self, engine: str) -> int:
        """Cells that a history could take: those of trunks that may be evicted included."""
        kept = sum(record.cells for record in self._table.on_engine(engine) if record.reserved)
        return self._capacity(engine) - kept

    def spare_cells(self, engine: str) -> int:
        """Cells that no history uses."""
        return self._capacity(engine) - self._table.cells(engine)

    def ordered_tokens(self, record: TrunkRecord) -> int:
        """Where a trunk will be when all that was sent is carried out, exports for it included."""
        if record.export is None:
            return record.submitted.tokens
        return max(record.submitted.tokens, self._exports.stop_tokens(record.export))

    def transfers(self, engine: str) -> tuple[int, int]:
        """Tokens that the engine was asked to export, and those on their way into it."""
        return self._exports.tokens_from(engine), self._exports.tokens_to(engine)
