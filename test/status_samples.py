"""Readings of a runtime that works, for tests of what is made of them."""

from __future__ import annotations

from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.history import Version
from edge_vlm_ros.planning.plan import Alternative, Plan
from edge_vlm_ros.runtime.status import (
    CostError,
    EngineReading,
    EngineRouting,
    LookupCounts,
    PairProbe,
    PlacementStatus,
    PlanningStatus,
    PlanRecord,
    PredictionError,
    QuestionStatus,
    StreamStatus,
    VisionStatus,
)
from edge_vlm_ros.vision.embedding_cache import CacheStats
from edge_vlm_ros.vision.self_test import SelfTestResult

V = Version("table", 0, 3)
STREAM = StreamStatus(
    stream="table",
    registered=V,
    encoded=V,
    published=V,
    frames=2,
    turns=0,
    tokens=100,
    max_tokens=1000,
    pending_frames=0,
    max_pending_frames=10,
    frames_received=50,
    frames_registered=20,
    frames_dropped=4,
    frames_skipped=25,
    frames_invalid=3,
    frames_failed=1,
    frame_rate_hz=10.0,
    frame_age_s=0.1,
    register_ms=0.5,
    encode_ms=20.0,
    ingest_ms=30.0,
    ingest_engine="cpu",
)
QUESTIONS = QuestionStatus(
    pending=1, max_pending=10, accepted=5, rejected={"queue_full": 2}, finished={"stop": 4}
)
VISION = VisionStatus(
    backend="ONNX Runtime",
    n_encoders=1,
    refused=(),
    self_test=SelfTestResult(1.0, 0.0, True, "cosine 1.0"),
    n_tokens=49,
    n_embd=256,
    queue_length=0,
    cache=CacheStats(3, 1, 0, 4, 2**20, 0, 0, over_budget=False),
    max_entries=256,
    max_bytes=2**26,
)
ENGINE = EngineStatus(
    name="cpu",
    device="CPU",
    model="demo",
    exact=True,
    cells=1000,
    cells_used=10,
    cells_reserved=0,
    trunks=1,
    running_answers=0,
    waiting_answers=0,
    prefill_tokens=0,
    ingest_tokens=0,
    generated_tokens=0,
    prefill_tok_s=0.0,
    decode_tok_s=0.0,
    busy_s=0.0,
    exported_bytes=3 * 2**20,
    imported_bytes=0,
    export_bytes_s=50.0 * 2**20,
    import_bytes_s=0.0,
    unordered_tokens=0,
    memory_weights_bytes=0,
    memory_kv_bytes=0,
)
READING = EngineReading(
    status=ENGINE,
    state="ready",
    error="",
    retry_in_s=-1.0,
    failures=0,
    resident_streams=("table",),
    memory_rss_bytes=2 * 2**20,
    memory_pss_bytes=2**20,
)
PLACEMENT = PlacementStatus(
    residents=(),
    probes=(PairProbe("cpu", "second", "equal", ""), PairProbe("second", "cpu", "close", "q4")),
    paths={"local": 3, "import": 2},
    handoffs=1,
    failovers=4,
    residency=LookupCounts(3, 2),
    prefixes=LookupCounts(0, 0),
    snapshots=LookupCounts(1, 8),
    full_imports=1,
    delta_imports=7,
    failed_imports=0,
    exported_bytes=0,
    imported_bytes=2**20,
    replayed_tokens=60,
    evicted_trunks=5,
    snapshot_entries=6,
    snapshot_bytes=2**21,
    snapshot_evictions=9,
    max_snapshot_entries=64,
    max_snapshot_bytes=2**28,
    prefix_entries=10,
    max_prefix_entries=4096,
)
PLANNING = PlanningStatus(
    policy="sdep",
    objective="first_token",
    sustained_load=True,
    engines=(EngineRouting("cpu", 0.75, 0.5, 0.9), EngineRouting("second", 0.25, 0.5, 1.2)),
    question_rate_hz=0.1,
    decisions=40,
    decision_mean_us=120.0,
    decision_max_us=900.0,
    first_token=PredictionError(20, 0.25),
    finished=PredictionError(19, 0.5),
    costs=(
        CostError("cpu", Activity.DECODE, 64, 0.125),
        CostError("onnx", Activity.ENCODE, 9, 2.0),
    ),
)
LOCAL = Alternative("local", "cpu", "cpu", 0.0, 1.0, 4.0, 0.1, 0.2, 0.05, 0.3)
IMPORT = Alternative("import", "second", "cpu", 0.25, 0.5, 2.0, 0.4, 0.5, 0.25, 0.6)
BLOCKED = Alternative("import", "gpu", "gpu", 0.0, 0.0, 0.0, blocked="KV types differ")
PLANNED = PlanRecord(
    answer_id=7,
    stream="table",
    plan=Plan("sdep", IMPORT, (LOCAL, IMPORT, BLOCKED), "second is idle"),
    objective="first_token",
    decided_s=1.0,
    predicted_first_token_s=1.5,
    predicted_finished_s=3.0,
)
