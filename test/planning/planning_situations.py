"""Engines and questions with round costs, so that times can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_vlm_ros.planning.costs import (
    Busy,
    CostModel,
    EngineCosts,
    MoveCost,
    RowCost,
    even_batches,
)
from edge_vlm_ros.planning.plan import Plan
from edge_vlm_ros.planning.policies import Policy, make_policy
from edge_vlm_ros.planning.state import (
    AnswerLoad,
    EngineState,
    Held,
    PlanningState,
    QuestionState,
    StreamState,
)

MOVE = MoveCost(fixed_s=0.001, byte_s=1e-9)
CELL_BYTES = 10_000
"""1000 tokens are 10 MB in 4 ranges: 14 ms to export and 14 ms to import."""

USUAL = EngineCosts(RowCost(0.001, 0.0001, 0.0), even_batches(0.010, 0.001, 0.0), MOVE, MOVE)
"""A decode step of B answers takes 10 + B ms; 20 tokens are prefilled in 3 ms."""
SLOW = EngineCosts(RowCost(0.004, 0.004, 0.0), even_batches(0.020, 0.010, 0.0), MOVE, MOVE)
"""A decode step of one answer takes 30 ms."""

ALONE_S = 0.003 + 49 * 0.011
"""The usual question on an idle usual engine that holds its history."""


def engine(name: str, **changes: Any) -> EngineState:
    values: dict[str, Any] = {
        "max_parallel": 4,
        "chunk_tokens": 64,
        "ingest_share": 0.5,
        "batching": True,
        "cell_bytes": CELL_BYTES,
        "free_cells": 100_000,
        "spare_cells": 100_000,
    }
    return EngineState(name, **{**values, **changes})


def running(*tokens: float, history: int = 1000) -> tuple[AnswerLoad, ...]:
    """Answers that are decoded and have so many tokens to go."""
    return tuple(AnswerLoad(history, 0, n) for n in tokens)


def state(
    *engines: EngineState,
    ingest: str = "",
    importable: bool = True,
    **stream: Any,
) -> PlanningState:
    """One stream ``cam``, ingested by ``ingest`` or else the first engine; no frames come."""
    names = [e.name for e in engines]
    values: dict[str, Any] = {"frame_rate_hz": 0.0, "frame_tokens": 50, "history_tokens": 1000}
    return PlanningState(
        engines,
        (StreamState("cam", ingest or names[0], **{**values, **stream}),),
        frozenset((a, b) for a in names for b in names if a != b) if importable else frozenset(),
    )


def question(held: Mapping[str, Held | int] | None = None, **changes: Any) -> QuestionState:
    """1000 tokens of history, 20 of prompt, 50 to be generated; whole numbers in ``held`` are
    tokens that are computed."""
    values: dict[str, Any] = {
        "stream": "cam",
        "history_tokens": 1000,
        "prompt_tokens": 20,
        "expected_tokens": 50.0,
        "held": {
            name: Held(tokens, tokens) if isinstance(tokens, int) else tokens
            for name, tokens in (held or {}).items()
        },
    }
    return QuestionState(**{**values, **changes})


def costs(
    slowdowns: Mapping[tuple[Busy, Busy], float] | None = None, **engines: EngineCosts
) -> CostModel:
    return CostModel(engines, {}, slowdowns or {})


def policy(text: str, *engines: str, objective: Any = "completion") -> Policy:
    return make_policy(text, engines, ("cam",), objective)


def planned(
    now: PlanningState, asked: QuestionState, model: CostModel, objective: Any = "completion"
) -> Plan | None:
    """What SDEP decides, seeing this for the first time."""
    names = [e.name for e in now.engines]
    return policy("sdep", *names, objective=objective).plan(now, asked, model)


def way(plan: Plan | None) -> tuple[str, str, str]:
    """The chosen path, prefill and decode engine."""
    assert plan is not None, "the question waits"
    return plan.chosen.path, plan.chosen.prefill_engine, plan.chosen.decode_engine
