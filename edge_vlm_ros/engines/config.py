"""Settings of one language engine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

KvType = Literal["q8_0", "f16", "bf16", "f32"]


@dataclass(frozen=True)
class EngineConfig:
    """One language engine.

    ``exact`` keeps every answer bit-equal to its serial reference with Q8_0 or Q4_0 weights and a
    q8_0 KV cache, at no cost. With other types it decodes one answer at a time in fixed chunks,
    which is as near as llama.cpp comes: what else is in the cache may still change the rounding.
    ``n_threads`` 0 leaves one core to the rest of the node; ``n_ctx`` 0 sizes the KV
    cache for the streams and answers configured. ``ingest_share`` is the part of the engine's time
    that ingestion gets while answers are running too.
    """

    name: str = "cpu"
    n_threads: int = 0
    n_ctx: int = 0
    kv_type: KvType = "q8_0"
    exact: bool = True
    max_parallel: int = 4
    chunk_tokens: int = 64
    ingest_share: float = 0.3

    def __post_init__(self) -> None:
        if self.kv_type not in ("q8_0", "f16", "bf16", "f32"):
            raise ValueError(f"engine {self.name!r}: unknown kv_type {self.kv_type!r}")
        if not 0.0 < self.ingest_share < 1.0:
            raise ValueError(
                f"engine {self.name!r}: ingest_share must be above 0 and below 1, not "
                f"{self.ingest_share}: neither ingestion nor answers may starve"
            )
        if self.max_parallel < 1 or self.chunk_tokens < 1 or self.n_threads < 0 or self.n_ctx < 0:
            raise ValueError(
                f"engine {self.name!r}: max_parallel and chunk_tokens must be at least 1, "
                "n_threads and n_ctx at least 0"
            )

    @property
    def threads(self) -> int:
        """Threads of the native library."""
        return self.n_threads or max(1, (os.cpu_count() or 2) - 1)
