"""Decoding through the action, against a bare loop over the same llama.cpp.

Both sides have the same weights, KV type, thread count, history and question. They take turns, so
that whatever else the machine does falls on both.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass

from edge_vlm_ros.demo.render import Picture
from edge_vlm_ros.demo.stream import TableStream
from edge_vlm_ros.engines.config import EngineConfig
from tools.reference_loop import ReferenceLoop

from .models import BenchmarkModel
from .robot import Robot, node_process

QUESTION = "What do you see?"
FRAMES = 4


@dataclass(frozen=True)
class DecodeResult:
    """Medians over the rounds: tokens per second after the first token, and the ratios to the bare
    loop within each round, which a slow drift of the machine's speed does not touch."""

    label: str
    rounds: int
    tokens: int
    bare_tok_s: float
    action_tok_s: float
    client_tok_s: float
    action_ratio: float
    client_ratio: float

    def row(self) -> str:
        return (
            f"| {self.label} | {self.tokens} | {self.bare_tok_s:.1f} | {self.action_tok_s:.1f} | "
            f"**{self.action_ratio:.3f}** | {self.client_tok_s:.1f} | {self.client_ratio:.3f} |"
        )


HEADER = (
    "| model | tokens | bare loop, tok/s | action, tok/s | ratio | at the client, tok/s | ratio |\n"
    "|---|---|---|---|---|---|---|"
)


def measure_decode(model: BenchmarkModel, max_tokens: int, rounds: int) -> DecodeResult:
    """Ask the same question ``rounds`` times on each side, in turns; the first round warms up."""
    profile = model.profile
    frames = _crowded_table()
    threads = EngineConfig().threads
    loop = ReferenceLoop(
        profile.language.file, profile.encoder.backends[0].file, n_threads=threads, n_batch=64
    )
    try:
        for frame in frames:
            loop.add_frame(frame)
        with node_process(model.profile_path) as _, Robot() as robot:
            robot.wait_for_node()
            for frame in frames:
                robot.publish(frame)
            robot.wait_for_frames(FRAMES)
            samples = [_round(robot, loop, max_tokens) for _ in range(rounds + 1)][1:]
    finally:
        loop.close()
    bare, action, client, tokens = zip(*samples, strict=True)
    return DecodeResult(
        label=model.label,
        rounds=rounds,
        tokens=int(statistics.median(tokens)),
        bare_tok_s=statistics.median(bare),
        action_tok_s=statistics.median(action),
        client_tok_s=statistics.median(client),
        action_ratio=statistics.median(a / b for a, b in zip(action, bare, strict=True)),
        client_ratio=statistics.median(c / b for c, b in zip(client, bare, strict=True)),
    )


def _crowded_table() -> list[Picture]:
    """Frames with as many objects as there can be: the longest answer."""
    table = TableStream(7, width=224, height=224)
    crowded = (k for k in itertools.count(FRAMES) if len(table.window(k, k + 1).present()) == 5)
    last = next(crowded)
    return [table.frame(k) for k in range(last + 1 - FRAMES, last + 1)]


def _round(robot: Robot, loop: ReferenceLoop, max_tokens: int) -> tuple[float, float, float, int]:
    answer = robot.ask(QUESTION, max_tokens)
    times = [time.perf_counter() for _ in loop.generate(QUESTION, max_tokens)]
    n = answer.result.metrics.generated_tokens
    if n != len(times) or n < 2:
        raise RuntimeError(f"the two sides generated {n} and {len(times)} tokens")
    bare = (n - 1) / (times[-1] - times[0])
    client = (n - 1) / (answer.finished - answer.first_token)
    return bare, answer.result.metrics.decode_tok_s, client, n
