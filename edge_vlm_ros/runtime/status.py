"""Readings of a runtime for dashboards."""

from __future__ import annotations

from dataclasses import dataclass

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
