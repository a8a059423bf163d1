"""Brings histories onto engines: continue, fork, import or replay, within the engines' cells."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from edge_vlm_ros.engines.protocol import (
    AppendFailed,
    AppendToTrunk,
    Boundary,
    DropTrunk,
    ExportFailed,
    ForkTrunk,
    HurryTrunk,
    ImportIntoTrunk,
    Origin,
    RangeExported,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.snapshot import Snapshot
from edge_vlm_ros.history import Epoch
from edge_vlm_ros.placement.cell_budget import CellBudget
from edge_vlm_ros.placement.prefix_index import PrefixIndex
from edge_vlm_ros.placement.residency import HeldVersion, ResidencyTable, TrunkRecord
from edge_vlm_ros.placement.snapshot_cache import SnapshotCache
from edge_vlm_ros.placement.transfer_counts import TransferCounts

from .boundary import boundary
from .config import PlacementConfig
from .engine_slots import EngineSlots
from .exports import Exports
from .path import Path
from .trunk_outlook import TrunkOutlook
from .trunk_source import TrunkSource

_logger = logging.getLogger(__name__)

_LEAST_FORK_N = 2
"""What all histories of a model start with is sooner computed than looked up."""


class Trunks:
    """All trunks of all engines. Owned by the coordinator's thread; every method returns at once.

    ``answer_cells`` of each engine are never given to trunks: an answer always finds room.
    ``is_ingest`` says whether a trunk is the one that its stream grows.
    """

    def __init__(
        self,
        slots: EngineSlots,
        config: PlacementConfig,
        answer_cells: int,
        is_ingest: Callable[[TrunkRecord], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = ResidencyTable()
        self.snapshots = SnapshotCache(config.snapshot_entries, config.snapshot_bytes)
        self.prefixes = PrefixIndex(config.prefix_entries)
        self.counts = TransferCounts()
        self._slots = slots
        self._answer_cells = answer_cells
        self._clock = clock
        self._exports = Exports(slots, self.table)
        self._interrupted = False
        self._evicted: set[tuple[str, str, int]] = set()
        self._is_ingest = is_ingest
        self.outlook = TrunkOutlook(
            self.table, self.snapshots, self._exports, slots, self._capacity
        )
        self._budget = CellBudget(self.table, self._capacity, is_ingest, self._evict, clock)

    # ---------------------------------------------------------------- questions
    def need(
        self, source: TrunkSource, epoch: Epoch, n: int, engine: str, path: Path, question: int
    ) -> TrunkRecord | None:
        """Have ``engine`` hold version ``n``, which is encoded, for an accepted question.

        Returns the trunk once it does. Until ``unneed`` it keeps what it has; call this again
        after every change until then.
        """
        record = self._record(source, epoch, engine)
        tokens = epoch.tokens(n)
        if record.reserved.get(question, -1) < tokens:
            if not self._budget.make_room(record, tokens, question):
                return None
            record.reserved[question] = tokens
        if record.computed.n >= n:
            return record
        self._extend(record, source, epoch, n, path)
        self._hurry(record, n)
        return None

    def unneed(self, question: int, engine: str | None = None) -> None:
        """The question has forked on ``engine``; None: it has ended, or goes elsewhere."""
        for record in self.table:
            if engine in (None, record.engine) and question in record.reserved:
                del record.reserved[question]
                record.last_use = self._clock()
                self._budget.note_freed()
        self._budget.leave(question, engine)

    def seconds_to_retry(self, now: float) -> float | None:
        """When ``take_retry`` should be called even if nothing else happens."""
        return self._budget.seconds_to_retry(now)

    def take_retry(self) -> bool:
        """Whether, since the last call, room was given back that somebody waits for, or a trunk
        was evicted that was to be extended: for frames, or as what another engine waits for."""
        interrupted, self._interrupted = self._interrupted, False
        return self._budget.take_retry() or interrupted

    # ---------------------------------------------------------------- ingestion
    def ingest(self, source: TrunkSource, epoch: Epoch, n: int, engine: str) -> int:
        """Have ``engine`` compute versions up to ``n``, as far as there is room; returns how far
        it has come."""
        known = self.table.get(engine, source.name, epoch.number)
        if known is not None:
            known.ahead = False
            if known.submitted.n >= n:
                return known.computed.n
        if (engine, source.name, epoch.number) in self._evicted and n <= epoch.published_n:
            return n  # it comes back when there is something new, or a question about it
        record = known or self._record(source, epoch, engine)
        record.last_use = self._clock()
        target = n
        while target > record.submitted.n and not self._budget.make_room(
            record, epoch.tokens(target), None
        ):
            target -= 1
        if target > record.submitted.n:
            self._extend(record, source, epoch, target, Path.ANY)
        return record.computed.n

    def cut(self, stream: str, epoch: int, engine: str) -> None:
        """Have an engine leave what it was told to compute of a history and has not. What it holds
        it goes on holding."""
        record = self.table.get(engine, stream, epoch)
        if record is None or not record.tokens_to_compute:
            return
        before, stop = record.trunk, record.computed
        self.table.cut(record)
        self._budget.note_freed()
        self.prefixes.forget(engine, before)
        for held in record.held:
            self._note_prefix(record, held.boundary)
        if stop.n:
            self._slots.engine(engine).submit(ForkTrunk(before, record.trunk, stop))
        self._slots.engine(engine).submit(DropTrunk(before))

    def compute_ahead(self, source: TrunkSource, epoch: Epoch, engine: str) -> None:
        """Have ``engine`` compute the next version of an epoch that is not in use yet, if it has
        nothing else to do and there is room to spare."""
        busy = any(not record.settled for record in self.table.on_engine(engine))
        if busy or (engine, source.name, epoch.number) in self._evicted:
            return
        known = self.table.get(engine, source.name, epoch.number)
        n, held = (1, 0) if known is None else (known.submitted.n + 1, known.cells)
        if n <= epoch.encoded_n and self._has_spare(engine, epoch.tokens(n) - held):
            record = self._record(source, epoch, engine)
            record.ahead = True
            self._extend(record, source, epoch, n, Path.ANY)

    def _has_spare(self, engine: str, cells: int) -> bool:
        """Whether no history and none of the answers side by side would use so many cells."""
        others = self._slots[engine].config.max_parallel - 1
        return self._budget.has_spare(engine, cells + others * self._answer_cells)

    def forget_epoch(self, stream: str, epoch: int) -> None:
        """Nobody needs KV of this epoch: drop what no question needs any more."""
        self._evicted = {e for e in self._evicted if e[1:] != (stream, epoch)}
        for record in self.table.of_epoch(stream, epoch):
            if not record.reserved:
                self._drop(record)

    def evict(self, stream: str, engine: str) -> int:
        """Drop the trunks of a stream on an engine that no question needs; returns how many."""
        there = [record for record in self.table.of_stream(stream) if record.engine == engine]
        records = [record for record in there if not record.reserved]
        for record in records:
            self._evict(record)
        return len(records)

    # ---------------------------------------------------------------- events
    def computed(self, engine: str, event: VersionComputed) -> TrunkRecord | None:
        """Note what a trunk holds; None when it has been dropped meanwhile."""
        record = self.table.of(engine, event.trunk)
        if record is None:
            return None
        done = [b for b in record.planned if b.n <= event.n]
        record.planned = [b for b in record.planned if b.n > event.n]
        record.held += [HeldVersion(b, event.origin) for b in done]
        record.attempts = 0
        record.last_use = self._clock()
        for b in done:
            self._note_prefix(record, b)
        return record

    def _note_prefix(self, record: TrunkRecord, stop: Boundary) -> None:
        if stop.n >= _LEAST_FORK_N:
            self.prefixes.add(record.engine, record.trunk, stop.identity)

    def append_failed(self, engine: str, event: AppendFailed) -> TrunkRecord | None:
        """Take a trunk back to what it holds; None when it has been dropped meanwhile."""
        record = self.table.of(engine, event.trunk)
        if record is None:
            return None
        if event.origin is Origin.FORKED and event.n <= record.computed.n:
            self._begin_anew(record)  # it was to hold on to what it held
        if record.ahead:  # it is computed when it is needed
            text = "engine %s: the next epoch of stream %s is not computed ahead: %s"
            _logger.warning(text, engine, event.trunk.stream, event.error)
            self._evict(record)
            return None
        record.submitted = record.importing = record.computed
        record.planned.clear()
        self._budget.note_freed()
        if event.n == record.computed.n + 1 or event.origin is not Origin.COMPUTED:
            record.attempts += 1
        if event.origin is not Origin.COMPUTED:
            self.counts.failed_imports += event.origin is Origin.IMPORTED
            record.transfers_refused = True
            _logger.warning(
                "engine %s: the history of stream %s cannot be %s, it is replayed: %s",
                engine,
                event.trunk.stream,
                event.origin.value,
                event.error,
            )
        return record

    def exported(self, event: RangeExported) -> TrunkRecord | None:
        """Keep the snapshots and hand them on; returns the trunk they extend."""
        export = self._exports.end(event.request_id)
        if export is None:
            return None
        for snapshot in event.snapshots:
            self.counts.exported_bytes += snapshot.n_bytes
            self.snapshots.put(snapshot)
        record = export.destination
        if record is None or self.table.of(record.engine, record.trunk) is not record:
            return None
        # The question that it was requested for may be gone, and its room with it. What was to come
        # before it on the trunk may not be there.
        stop, question = export.boundaries[-1], min(record.reserved, default=None)
        fits = export.boundaries[0] == record.submitted
        if fits and self._budget.make_room(record, stop.tokens, question):
            self._import(record, export.boundaries, event.snapshots)
        return record

    def export_failed(self, event: ExportFailed) -> TrunkRecord | None:
        export = self._exports.end(event.request_id)
        if export is None or export.destination is None:
            return None
        _logger.warning("engine %s cannot export: %s", export.source, event.error)
        export.destination.transfers_refused = True
        self.counts.failed_imports += 1
        return export.destination

    def engine_lost(self, engine: str) -> None:
        """Everything that a failed engine held is gone."""
        for record in self.table.on_engine(engine):
            self.table.drop(record)
            self.prefixes.forget(engine, record.trunk)
        self._exports.engine_lost(engine)
        self._budget.note_freed()

    # ---------------------------------------------------------------- extending
    def _record(self, source: TrunkSource, epoch: Epoch, engine: str) -> TrunkRecord:
        record = self.table.get(engine, source.name, epoch.number)
        if record is None:
            root = boundary(epoch, 0)
            record = self.table.begin(engine, source.name, epoch.number, root, self._clock())
            self._evicted.discard((engine, source.name, epoch.number))
        record.ahead = False
        return record

    def _extend(
        self, record: TrunkRecord, source: TrunkSource, epoch: Epoch, n: int, path: Path
    ) -> None:
        """Send what takes the trunk on towards version ``n``, for which there is room."""
        if record.export is not None or record.submitted.n >= n:
            return
        if path is Path.ANY and not record.transfers_refused:
            self._fork(record, epoch, n)
        if path is not Path.REPLAY and not record.transfers_refused:
            self._import_snapshots(record, epoch, n)
            if self._exports.request_missing(record, epoch, n):
                return
            missing = epoch.tokens(n) - record.submitted.tokens
            if missing and path is Path.IMPORT and self._will_be_held(record, n):
                return  # the engine that ingests the stream is about to have it
        engine = self._slots.engine(record.engine)
        for at in range(record.submitted.n, n):
            engine.submit(AppendToTrunk(record.trunk, at + 1, source.segments(epoch, at + 1)))
            self._submitted(record, boundary(epoch, at + 1))

    def _hurry(self, record: TrunkRecord, n: int) -> None:
        if record.awaited_n < n:
            record.awaited_n = n
            self._slots.engine(record.engine).submit(HurryTrunk(record.trunk, n))

    def _submitted(self, record: TrunkRecord, stop: Boundary) -> None:
        record.planned.append(stop)
        record.submitted = stop

    def _fork(self, record: TrunkRecord, epoch: Epoch, n: int) -> None:
        """Begin the trunk anew as part of another one that holds more of the same computation."""
        first = max(record.submitted.n + 1, _LEAST_FORK_N)
        wanted = [boundary(epoch, at) for at in range(first, n + 1)]
        missing = [b for b in wanted if b.tokens > record.submitted.tokens]
        place = self.prefixes.longest(record.engine, missing) if missing else None
        if place is None:
            return
        before = self._begin_anew(record)
        engine = self._slots.engine(record.engine)
        engine.submit(ForkTrunk(place.trunk, record.trunk, place.stop))
        engine.submit(DropTrunk(before))
        self._submitted(record, place.stop)

    def _begin_anew(self, record: TrunkRecord) -> TrunkId:
        """Returns the trunk that is replaced and must be dropped."""
        before = record.trunk
        self.table.renew(record)
        self._budget.note_freed()
        self.prefixes.forget(record.engine, before)
        return before

    def _import_snapshots(self, record: TrunkRecord, epoch: Epoch, n: int) -> None:
        start = record.submitted.n
        if start and start >= epoch.published_n:
            return  # what no engine ever held is in no cache
        ends = [boundary(epoch, at) for at in range(n + 1)]
        layout = self._slots.engine(record.engine).layout
        found = self.snapshots.chain(layout, ends[start:], ends)
        if not found:
            return
        by_identity = {end.identity: end for end in ends}
        stops = [by_identity[snapshot.header.stop_identity] for snapshot in found]
        begin = by_identity[found[0].header.start_identity]
        if begin.tokens < record.submitted.tokens:
            if stops[-1].tokens <= record.submitted.tokens:
                return
            self._slots.engine(record.engine).submit(DropTrunk(self._begin_anew(record)))
        self._import(record, (record.submitted, *stops), tuple(found))

    def _import(
        self,
        record: TrunkRecord,
        boundaries: tuple[Boundary, ...],
        snapshots: tuple[Snapshot, ...],
    ) -> None:
        is_delta = boundaries[0].n > 0
        self.counts.full_imports += not is_delta
        self.counts.delta_imports += is_delta
        engine = self._slots.engine(record.engine)
        for start, stop, snapshot in zip(boundaries, boundaries[1:], snapshots, strict=False):
            engine.submit(ImportIntoTrunk(record.trunk, start, stop, snapshot))
            self._submitted(record, stop)
            record.importing = stop
            self.counts.imported_bytes += snapshot.n_bytes

    def _will_be_held(self, record: TrunkRecord, n: int) -> bool:
        """Whether the engine that ingests the stream has been told to compute version ``n``, or
        will be when it has imported what comes before. While it has no room for that it may be a
        question's reserve that it waits for."""
        stream, epoch = record.trunk.stream, record.trunk.epoch
        for other in self.table.of_epoch(stream, epoch):
            may = self._is_ingest(other) and self._exports.can_give(other, record)
            if may and (other.submitted.n >= n or other.export is not None):
                self._hurry(other, n)
                return True
        return False

    # ---------------------------------------------------------------- dropping
    def _capacity(self, engine: str) -> int:
        return self._slots.engine(engine).n_cells - self._answer_cells

    def _evict(self, record: TrunkRecord) -> None:
        """Drop a trunk; what only this engine holds goes to host memory first, if it may."""
        alike = self.table.of_epoch(record.trunk.stream, record.trunk.epoch)
        others = max((other.computed.n for other in alike if other is not record), default=0)
        ends = record.boundaries(0)
        is_worth_it = not record.ahead and len(ends) > 1 and record.computed.n > others
        if self.snapshots.max_bytes and is_worth_it:
            self._exports.request(record, ends, None)
        self.counts.evicted_trunks += 1
        self._evicted.add((record.engine, record.trunk.stream, record.trunk.epoch))
        self._interrupted = self._interrupted or not record.settled
        self._drop(record)

    def _drop(self, record: TrunkRecord) -> None:
        self.table.drop(record)
        self.prefixes.forget(record.engine, record.trunk)
        if self._slots[record.engine].ready:
            self._slots.engine(record.engine).submit(DropTrunk(record.trunk))
        self._budget.note_freed()
