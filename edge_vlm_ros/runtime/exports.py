"""Exports of KV that are under way, and whom they are for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_vlm_ros.engines.protocol import Boundary, ExportRange, TrunkId
from edge_vlm_ros.history import Epoch
from edge_vlm_ros.placement.eviction import cut_ranges
from edge_vlm_ros.placement.residency import ResidencyTable, TrunkRecord, farthest

from .boundary import boundary
from .engine_slots import EngineSlots


@dataclass(frozen=True)
class Export:
    """What is being exported, and the trunk that it is to extend (None: only for the cache)."""

    source: str
    trunk: TrunkId
    boundaries: tuple[Boundary, ...]
    destination: TrunkRecord | None

    @property
    def tokens(self) -> int:
        return self.boundaries[-1].tokens - self.boundaries[0].tokens


class Exports:
    """Requests to engines. A trunk that waits for one has its number in ``TrunkRecord.export``."""

    def __init__(self, slots: EngineSlots, table: ResidencyTable) -> None:
        self._slots = slots
        self._table = table
        self._exports: dict[int, Export] = {}
        self._next_request = 1

    def request_missing(self, record: TrunkRecord, epoch: Epoch, n: int) -> bool:
        """Ask the engine that holds most of what a trunk lacks of version ``n`` for it; False if
        there is none."""
        start = record.submitted.n
        if start >= n:
            return False
        if self._adopt(record, n):
            return True
        others = self._table.of_epoch(record.trunk.stream, epoch.number)
        able = (o for o in others if o.computed.n > start and self.can_give(o, record))
        other = farthest(able)
        if other is None:
            return False
        ends = [boundary(epoch, at) for at in range(start, min(n, other.computed.n) + 1)]
        if ends[-1].tokens == ends[0].tokens:
            return False  # frames that could not be encoded: nothing to move
        self.request(other, ends, record)
        return True

    def can_give(self, source: TrunkRecord, destination: TrunkRecord) -> bool:
        """Whether an engine can export a trunk to another one."""
        one, other = source.engine, destination.engine
        return one != other and self._slots[one].ready and self._slots.can_import(one, other)

    def request(
        self, holder: TrunkRecord, ends: list[Boundary], destination: TrunkRecord | None
    ) -> None:
        """Have the engine of ``holder`` export what lies between the first and the last of
        ``ends``, cut at some of them."""
        longest = self._slots[holder.engine].config.transfer_tokens
        cuts = cut_ranges([end.tokens for end in ends], longest)
        boundaries = tuple(ends[cut] for cut in cuts)
        request, self._next_request = self._next_request, self._next_request + 1
        self._exports[request] = Export(holder.engine, holder.trunk, boundaries, destination)
        if destination is not None:
            destination.export = request
        command = ExportRange(request, holder.trunk, boundaries)
        self._slots.engine(holder.engine).submit(command)

    def _adopt(self, record: TrunkRecord, n: int) -> bool:
        """Let ``record``, which is to reach version ``n``, wait for an export of what was evicted a
        moment ago; False when there is none that fits."""
        for request, export in self._exports.items():
            same_epoch = replace(export.trunk, life=record.trunk.life) == record.trunk
            fits = export.boundaries[0] == record.submitted and export.boundaries[-1].n <= n
            if export.destination is None and same_epoch and fits:
                if self._slots.can_import(export.source, record.engine):
                    self._exports[request] = replace(export, destination=record)
                    record.export = request
                    return True
        return False

    def stop_tokens(self, request: int) -> int:
        """How far an export that is under way will take a trunk."""
        return self._exports[request].boundaries[-1].tokens

    def tokens_from(self, engine: str) -> int:
        """Tokens that ``engine`` is to export."""
        return sum(export.tokens for export in self._exports.values() if export.source == engine)

    def tokens_to(self, engine: str) -> int:
        """Tokens being exported that are to be imported into ``engine`` then."""
        return sum(
            export.tokens
            for export in self._exports.values()
            if export.destination is not None and export.destination.engine == engine
        )

    def end(self, request: int) -> Export | None:
        """A request has been answered; None when its engine was lost meanwhile."""
        export = self._exports.pop(request, None)
        if export is not None and export.destination is not None:
            export.destination.export = None
        return export

    def engine_lost(self, engine: str) -> None:
        """What a failed engine was to export will never come."""
        for request, export in list(self._exports.items()):
            if export.source == engine:
                self.end(request)
