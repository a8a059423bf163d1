"""Settings of one language engine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from .device_text import parse_device

KvType = Literal["q8_0", "f16", "bf16", "f32"]
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


@dataclass(frozen=True)
class EngineConfig:
    """One language engine.

    ``device`` is what computes: ``cpu``, ``vulkan:<n>``, ``cuda:<n>``, ``rpc`` (a process of our
    own), ``rpc:<host>:<port>`` (a server that runs already; one that is not on this computer only
    with ``allow_remote``: its protocol has neither authentication nor encryption), or any name that
    `ros2 run edge_vlm_ros devices` lists.

    ``exact`` keeps every answer bit-equal to its serial reference with Q8_0 or Q4_0 weights and a
    q8_0 KV cache, at no cost. With other types it decodes one answer at a time in fixed chunks,
    which is as near as llama.cpp comes: what else is in the cache may still change the rounding.
    ``n_threads`` 0 means one per core in ``cpus``, which the engine's threads are pinned to; with
    no ``cpus`` it leaves one core to the rest of the node. ``n_ctx`` 0 sizes the KV cache for the
    streams and answers configured. ``ingest_share`` is the part of the engine's time that ingestion
    gets while answers are running too. ``transfer_tokens`` is the longest range of KV that is
    exported or imported in one step, so the longest that a running answer waits for it. ``repack``
    lets a CPU engine keep a rearranged copy of the weights, in which it computes faster (AMX tiles,
    interleaved blocks); without it the file's own pages are used, which all processes share.
    """

    name: str = "cpu"
    n_threads: int = 0
    n_ctx: int = 0
    kv_type: KvType = "q8_0"
    exact: bool = True
    max_parallel: int = 4
    chunk_tokens: int = 64
    ingest_share: float = 0.3
    device: str = "cpu"
    cpus: tuple[int, ...] = ()
    allow_remote: bool = False
    transfer_tokens: int = 256
    repack: bool = True

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(
                f"engine {self.name!r}: a name has small letters, digits and underscores, and "
                "begins with a letter"
            )
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
        if self.transfer_tokens < 1:
            raise ValueError(f"engine {self.name!r}: transfer_tokens must be at least 1")
        self._check_cpus()
        try:
            parse_device(self.device, allow_remote=self.allow_remote)
        except ValueError as error:
            raise ValueError(f"engine {self.name!r}: {error}") from error

    def _check_cpus(self) -> None:
        if len(set(self.cpus)) != len(self.cpus):
            raise ValueError(f"engine {self.name!r}: cpus {list(self.cpus)} has a core twice")
        usable = os.sched_getaffinity(0)
        missing = sorted(set(self.cpus) - usable)
        if missing:
            raise ValueError(
                f"engine {self.name!r}: cpus {missing} are not among the cores that this process "
                f"may use: {sorted(usable)}"
            )

    @property
    def threads(self) -> int:
        """Threads of the native library."""
        return self.n_threads or len(self.cpus) or max(1, (os.cpu_count() or 2) - 1)
