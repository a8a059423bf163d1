"""Time to the first token as the history grows: retained context against prefilling it all again.

The other side does what a chat handler does that clears the KV cache for every call: the whole
history is computed again for each question. Encoded frames are given to it for free.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from edge_vlm_ros.demo.stream import TableStream
from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.runtime import Runtime, RuntimeConfig, StreamConfig
from edge_vlm_ros.vision.encoder import Embeddings
from tools.reference_loop import ReferenceLoop

from .models import BenchmarkModel

QUESTION = "What changed?"
FRAMES = 12


@dataclass(frozen=True)
class GrowthRow:
    """Medians in milliseconds for a history of so many frames."""

    frames: int
    retained_ms: float
    prefill_ms: float

    def row(self) -> str:
        ratio = self.prefill_ms / self.retained_ms
        return f"| {self.frames} | {self.retained_ms:.1f} | {self.prefill_ms:.1f} | {ratio:.1f} |"


HEADER = "| frames | retained, ms | prefill all, ms | ratio |\n|---|---|---|---|"


def measure_growth(model: BenchmarkModel, rounds: int) -> list[GrowthRow]:
    """Add frames one by one; after each, ask ``rounds`` times on each side, in turns."""
    profile = model.profile
    table = TableStream(7, width=224, height=224)
    threads = EngineConfig().threads
    loop = ReferenceLoop(
        profile.language.file, profile.encoder.backends[0].file, n_threads=threads, n_batch=64
    )
    runtime = Runtime(RuntimeConfig(profile, (StreamConfig("camera"),)))
    runtime.load()
    runtime.activate()
    rows = []
    embeddings: list[Embeddings] = []
    try:
        for k in range(FRAMES):
            frame = table.frame(k)
            embeddings.append(loop.encode(frame))
            runtime.add_frame("camera", frame, stamp_ns=k)
            runtime.ask("camera", QUESTION).result()  # now the frame is published
            retained, prefill = [], []
            for _ in range(rounds):
                result = runtime.ask("camera", QUESTION).result()
                retained.append(result.metrics.ttft_ms)
                prefill.append(_prefill_all_ms(loop, embeddings))
            rows.append(GrowthRow(k + 1, statistics.median(retained), statistics.median(prefill)))
    finally:
        runtime.close()
        loop.close()
    return rows


def _prefill_all_ms(loop: ReferenceLoop, embeddings: list[Embeddings]) -> float:
    start = time.perf_counter()
    loop.reset()
    for rows in embeddings:
        loop.add_embeddings(rows)
    tokens = loop.generate(QUESTION, 1)
    next(tokens)
    elapsed = 1000.0 * (time.perf_counter() - start)
    tokens.close()
    return elapsed
