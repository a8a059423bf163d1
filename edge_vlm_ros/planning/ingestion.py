"""Which engine computes the frames of a stream (Stateful Streaming Generation)."""

from __future__ import annotations

from math import ceil

from edge_vlm_ros.engines.step_record import Activity

from .context_time import RANGE_TOKENS, busy_with
from .costs import CostModel
from .state import EngineState, PlanningState, StreamState

GAIN = 1.25
"""Another engine must be so many times faster for ingestion to move: it must not flap."""


def ingest_engine(state: PlanningState, stream: str, costs: CostModel) -> str:
    """The engine on which the stream's next frame is there first.

    That is after what was ordered on the engine before, at its ``ingest_share`` while answers run;
    on another engine than now, after importing what is computed and computing again what was
    ordered here and is not. A stream of which nothing is computed goes where it is done first,
    of equals to the engine with fewer streams.
    """
    this = next(s for s in state.streams if s.name == stream)
    times = {e.name: _frame_s(e, this, state, costs) for e in state.engines}
    if not times:
        return this.ingest_engine
    best = min(times, key=lambda name: (times[name], _streams_on(name, state, this)))
    now = this.ingest_engine
    if now not in times:
        return best
    if not max(this.held.values(), default=0):
        alike = [name for name in times if times[name] <= 1.05 * times[best]]
        return min(alike, key=lambda name: (_streams_on(name, state, this), times[name]))
    return best if times[now] > GAIN * times[best] else now


def _streams_on(engine: str, state: PlanningState, but: StreamState) -> int:
    return sum(s.ingest_engine == engine for s in state.streams if s is not but)


def _frame_s(
    engine: EngineState, stream: StreamState, state: PlanningState, costs: CostModel
) -> float:
    """Seconds until one more frame of the stream is computed on an engine."""
    cost = costs.engines[engine.name]
    factor = costs.slowdown(engine.name, Activity.PREFILL, busy_with(state)[engine.name])
    tokens, move_s = stream.frame_tokens, 0.0
    if engine.name != stream.ingest_engine:
        tokens += stream.ordered_tokens
        here, there = stream.held.get(engine.name, 0), stream.held.get(stream.ingest_engine, 0)
        if there > here:
            possible = (stream.ingest_engine, engine.name) in state.importable
            if possible:
                move_s = _move_s(there - here, stream.ingest_engine, engine, costs)
            else:
                tokens += there - here
    own = cost.prefill_s(tokens, stream.history_tokens, engine.chunk_tokens)
    ahead = cost.prefill_s(engine.ingest_tokens, engine.ingest_history_tokens, engine.chunk_tokens)
    share = engine.ingest_share if engine.answers else 1.0
    return move_s + factor * (ahead + own) / share


def _move_s(tokens: int, source: str, engine: EngineState, costs: CostModel) -> float:
    moves, n_bytes = ceil(tokens / RANGE_TOKENS), tokens * engine.cell_bytes
    export, import_ = costs.engines[source].export, costs.engines[engine.name].import_
    return moves * (export.fixed_s + import_.fixed_s) + n_bytes * (export.byte_s + import_.byte_s)
