"""A small machine whose costs are powers of two: sums of them are exact."""

from __future__ import annotations

from collections.abc import Mapping

from edge_vlm_ros.planning.costs import (
    ENCODER,
    Busy,
    CostModel,
    EngineCosts,
    MoveCost,
    RowCost,
    even_batches,
)
from edge_vlm_ros.simulation.profile import EngineFacts, ModelFacts, Profile
from edge_vlm_ros.simulation.workload import Asked, Frame, Workload

CELL_BYTES = 1024
FRAME_TOKENS = 4 + 2
OPEN_TOKENS = 2
PREFILL = RowCost(1 / 4, 1 / 16, 0.0)
DECODE = even_batches(1 / 2, 1 / 8, 0.0)
MOVE = MoveCost(1 / 8, 1 / 2**14)


def machine(
    *engines: str, slowdowns: Mapping[tuple[Busy, Busy], float] | None = None, encode_s: float = 1.0
) -> Profile:
    """A profile with engines of equal costs; encoding a frame takes ``encode_s``."""
    model = ModelFacts("tiny", FRAME_TOKENS - 2, 2, OPEN_TOKENS, CELL_BYTES, 4096)
    return Profile(
        "tiny",
        "a machine of tests",
        model,
        tuple(EngineFacts(name, "cpu", 2, 64, True) for name in engines),
        "npu",
        CostModel(
            {name: EngineCosts(PREFILL, DECODE, MOVE, MOVE) for name in engines},
            {ENCODER: encode_s},
            slowdowns or {},
        ),
    )


def one_question(
    *, frames: int = 1, answer_tokens: int = 3, max_tokens: int = 3, **how: str
) -> Workload:
    """Frames and a question of 8 tokens after them, all at once."""
    question = Asked(0.0, "table", 0, 8, answer_tokens, max_tokens, **how)
    return Workload(("table",), (*[Frame(0.0, "table")] * frames, question), 0.0)
