"""Reads the state of engines and placement for dashboards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.history import Version
from edge_vlm_ros.placement.residency import ResidencyTable

from .engine_slots import EngineSlot, EngineSlots
from .status import EngineReading, LookupCounts, PairProbe, PlacementStatus, Resident

if TYPE_CHECKING:
    from .coordinator import Coordinator  # whose status this reads


def read_engines(
    slots: EngineSlots, table: ResidencyTable, now: float
) -> tuple[EngineReading, ...]:
    """All engines in the order of the configuration, memory of their processes left at 0."""
    return tuple(_read_engine(slot, table, now) for slot in slots)


def _read_engine(slot: EngineSlot, table: ResidencyTable, now: float) -> EngineReading:
    name = slot.config.name
    if slot.engine is not None:
        slot.last_status = slot.engine.status()
    streams = {record.trunk.stream for record in table.on_engine(name) if record.computed.n}
    return EngineReading(
        status=slot.last_status or _no_status(slot),
        state=slot.state,
        error=slot.error,
        retry_in_s=-1.0 if slot.retry_at is None else max(0.0, slot.retry_at - now),
        failures=slot.failures,
        resident_streams=tuple(sorted(streams)),
        memory_rss_bytes=0,
        memory_pss_bytes=0,
    )


def read_placement(
    coordinator: Coordinator, probes: Iterable[PairProbe], now: float
) -> PlacementStatus:
    trunks, answering = coordinator.trunks, coordinator.answering
    counts, snapshots, prefixes = trunks.counts, trunks.snapshots, trunks.prefixes
    residents = []
    for record in trunks.table:
        if not record.computed.n:
            continue
        cell_bytes = coordinator.slots.cell_bytes(record.engine)
        residents.append(
            Resident(
                engine=record.engine,
                version=Version(record.trunk.stream, record.trunk.epoch, record.computed.n),
                cells=record.computed.tokens,
                bytes=record.computed.tokens * cell_bytes,
                idle_s=now - record.last_use,
                role="ingest" if coordinator.streams[record.trunk.stream].grows(record) else "copy",
                readers=len(record.reserved),
            )
        )
    return PlacementStatus(
        residents=tuple(residents),
        probes=tuple(probes),
        paths=dict(answering.paths),
        handoffs=answering.handoffs,
        failovers=answering.failovers,
        residency=LookupCounts(answering.residency_hits, answering.residency_misses),
        prefixes=LookupCounts(prefixes.hits, prefixes.misses),
        snapshots=LookupCounts(snapshots.hits, snapshots.misses),
        full_imports=counts.full_imports,
        delta_imports=counts.delta_imports,
        failed_imports=counts.failed_imports,
        exported_bytes=counts.exported_bytes,
        imported_bytes=counts.imported_bytes,
        replayed_tokens=counts.replayed_tokens,
        evicted_trunks=counts.evicted_trunks,
        snapshot_entries=len(snapshots),
        snapshot_bytes=snapshots.n_bytes,
        snapshot_evictions=snapshots.evictions,
        max_snapshot_entries=snapshots.max_entries,
        max_snapshot_bytes=snapshots.max_bytes,
        prefix_entries=len(prefixes),
        max_prefix_entries=prefixes.max_entries,
    )


def _no_status(slot: EngineSlot) -> EngineStatus:
    """What is said of an engine that has not worked yet: its name and zeros."""
    config = slot.config
    # A whole number in a message's floating-point field aborts the process.
    zeros: dict[str, float] = {
        name: 0.0 if field.type == "float" else 0
        for name, field in EngineStatus.__dataclass_fields__.items()
        if name not in _TEXTS
    }
    texts = {"name": config.name, "device": config.device, "model": ""}
    return EngineStatus(**texts, exact=config.exact, **zeros)  # type: ignore[arg-type]


_TEXTS = ("name", "device", "model", "exact")
