"""Readings of a runtime for dashboards."""

from __future__ import annotations

from dataclasses import dataclass

from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.history import Version
from edge_vlm_ros.vision.embedding_cache import CacheStats
from edge_vlm_ros.vision.self_test import SelfTestResult


@dataclass(frozen=True)
class StreamStatus:
    """See msg/StreamStatus.msg for the meaning of each field."""

    stream: str
    registered: Version
    encoded: Version
    published: Version
    frames: int
    turns: int
    tokens: int
    max_tokens: int
    pending_frames: int
    max_pending_frames: int
    frames_received: int
    frames_registered: int
    frames_dropped: int
    frames_skipped: int
    frames_invalid: int
    frames_failed: int
    frame_rate_hz: float
    frame_age_s: float
    register_ms: float
    encode_ms: float
    ingest_ms: float
    ingest_engine: str


@dataclass(frozen=True)
class VisionStatus:
    """The encoder and the embedding cache. ``max_entries`` and ``max_bytes`` are its limits."""

    backend: str
    self_test: SelfTestResult
    n_tokens: int
    n_embd: int
    queue_length: int
    cache: CacheStats
    max_entries: int
    max_bytes: int


@dataclass(frozen=True)
class QuestionStatus:
    """Questions since start; ``finished`` counts by finish reason, ``rejected`` by reason."""

    pending: int
    max_pending: int
    accepted: int
    rejected: dict[str, int]
    finished: dict[str, int]


@dataclass(frozen=True)
class EngineReading:
    """One engine as it is now: ``status`` of the engine itself, and what surrounds it.

    ``state`` is ``ready``, ``failed`` (then ``error`` says why and ``retry_in_s`` when it is
    started again, -1 for never) or ``starting``. Memory is that of the process that holds the
    engine's KV: the server's for an RPC engine that the node started, otherwise the node's.
    """

    status: EngineStatus
    state: str
    error: str
    retry_in_s: float
    failures: int
    resident_streams: tuple[str, ...]
    memory_rss_bytes: int
    memory_pss_bytes: int


@dataclass(frozen=True)
class Resident:
    """One version that an engine holds. ``role`` is ``ingest`` (it grows with its stream) or
    ``copy``; ``readers`` counts the accepted questions that need it there."""

    engine: str
    version: Version
    cells: int
    bytes: int
    idle_s: float
    role: str
    readers: int


@dataclass(frozen=True)
class PairProbe:
    """What happened when KV was moved between two engines at start.

    ``outcome`` is ``equal`` (payload and the next tokens), ``close`` (payload equal, the next
    tokens differ: other arithmetic) or ``incompatible`` (``detail`` says why; such a pair uses
    replay).
    """

    source: str
    destination: str
    outcome: str
    detail: str


@dataclass(frozen=True)
class LookupCounts:
    """How often something was looked for, the first time included, and how often it was there."""

    hits: int
    misses: int


@dataclass(frozen=True)
class PlacementStatus:
    """Where state is and how it got there; counters since start, sizes in bytes."""

    residents: tuple[Resident, ...]
    probes: tuple[PairProbe, ...]
    paths: dict[str, int]
    """Questions by path: local, import, replay."""
    handoffs: int
    failovers: int
    residency: LookupCounts
    """Whether the engine chosen for a question held its version already."""
    prefixes: LookupCounts
    """Whether a trunk that was begun could be forked from one on the same engine."""
    snapshots: LookupCounts
    """Whether a wanted range of KV was in host memory already."""
    full_imports: int
    delta_imports: int
    failed_imports: int
    exported_bytes: int
    imported_bytes: int
    replayed_tokens: int
    evicted_trunks: int
    snapshot_entries: int
    snapshot_bytes: int
    snapshot_evictions: int
    max_snapshot_entries: int
    max_snapshot_bytes: int
    prefix_entries: int
    max_prefix_entries: int
