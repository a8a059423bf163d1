"""Readings of a runtime for dashboards."""

from __future__ import annotations

from dataclasses import dataclass

from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.history import Version
from edge_vlm_ros.planning.plan import Objective, Plan
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
    """The encoder and the embedding cache, whose limits are ``max_entries`` and ``max_bytes``.

    ``backend`` is what really runs it, ``refused`` says why earlier backends of the profile do not.
    """

    backend: str
    n_encoders: int
    refused: tuple[str, ...]
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

    ``outcome`` is ``equal`` (both compute the same KV from the same tokens, and the same next
    tokens), ``close`` (KV moves unchanged, but they compute with other arithmetic) or
    ``incompatible`` (``detail`` says why; such a pair uses replay).
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


# ------------------------------------------------------------------------- planning
def factor_error(predicted: float, actual: float) -> float:
    """How far a prediction was off, whichever way: the larger by the smaller, less 1.

    0: right; 1: off by a factor of 2. A prediction of nothing that took time is off by infinity.
    """
    low, high = sorted((predicted, actual))
    if high <= 0:
        return 0.0
    return high / low - 1.0 if low > 0 else float("inf")


@dataclass(frozen=True)
class PlanRecord:
    """One plan and what became of it. Times are in seconds from the question's arrival.

    ``predicted_...`` hold for the chosen alternative. ``actual_...`` are None until known, or
    when it never came so far; ``finish_reason`` is empty until the answer has ended.
    """

    answer_id: int
    stream: str
    plan: Plan
    objective: Objective
    decided_s: float
    predicted_first_token_s: float
    predicted_finished_s: float
    actual_first_token_s: float | None = None
    actual_finished_s: float | None = None
    finish_reason: str = ""

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)


@dataclass(frozen=True)
class EngineRouting:
    """How questions are spread: parts from 0 to 1.

    ``share`` of the questions is what the engine should get under sustained load, ``routed`` what
    it got of the recent ones, ``utilisation`` the part of its time that the recent load takes.
    """

    engine: str
    share: float
    routed: float
    utilisation: float


@dataclass(frozen=True)
class PredictionError:
    """Median ``factor_error`` of the last ``n`` predictions."""

    n: int = 0
    error: float = 0.0


@dataclass(frozen=True)
class CostError:
    """Median ``factor_error`` of what the last ``n`` steps of one kind were expected to take."""

    engine: str
    """An engine or encoder."""
    activity: Activity
    n: int
    error: float


@dataclass(frozen=True)
class PlanningStatus:
    """How questions are placed, and how well their times are foreseen."""

    policy: str
    objective: Objective
    sustained_load: bool
    """Whether shares are used: questions come about as fast as they can be answered."""
    engines: tuple[EngineRouting, ...]
    question_rate_hz: float
    decisions: int
    decision_mean_us: float
    decision_max_us: float
    first_token: PredictionError
    finished: PredictionError
    costs: tuple[CostError, ...]
