"""Which engine computes the frames of a stream (Stateful Streaming Generation)."""

from __future__ import annotations

from math import ceil

from edge_vlm_ros.engines.step_record import Activity

from .context_time import RANGE_TOKENS, busy_with
from .costs import Busy, CostModel, EngineCosts
from .state import EngineState, PlanningState, StreamState

GAIN = 1.5
"""Another engine must be so many times faster for ingestion to move: it must not flap, and what
moves must come back. With 3 a camera stays on an engine of half the speed, and questions wait there
for their newest frame."""

SLOWER = 2.0
"""A stream that begins takes an engine with fewer streams although it is so much slower: two that
are behind on the faster one take as long, and that is free to answer the sooner."""


def ingest_engine(state: PlanningState, stream: str, costs: CostModel) -> str:
    """The engine on which all that the stream has registered is computed first.

    That is after what was ordered on the engine before and what its streams have on their way
    through the encoder, at its ``ingest_share`` while answers run; on another engine than now,
    after importing what is computed and computing again what was ordered here and is not. What is
    moved counts twice, since it may have to come back; what the other streams of that engine, which
    take turns with this one, get later for it counts too. An engine that has no cells for the
    history is no choice. A history that has hardly begun goes where it is done first, of alike
    engines to the one with fewer streams.
    """
    this = next(s for s in state.streams if s.name == stream)
    busy, now = busy_with(state), this.ingest_engine
    times = {e.name: _caught_up_s(e, this, costs, state, busy[e.name]) for e in state.engines}
    if not times:
        return now
    streams = {name: _streams_on(name, state, this) for name in times}
    best = min(times, key=lambda name: (times[name], name != now, streams[name]))
    if now not in times:
        return best
    if _has_hardly_begun(this):
        near = [name for name in times if times[name] <= SLOWER * times[best]]
        return min(near, key=lambda name: (streams[name], name != now, times[name]))
    return best if times[now] > GAIN * times[best] else now


def _streams_on(engine: str, state: PlanningState, but: StreamState) -> int:
    return sum(s.ingest_engine == engine for s in state.streams if s is not but)


def _caught_up_s(
    engine: EngineState,
    stream: StreamState,
    costs: CostModel,
    state: PlanningState,
    busy: tuple[Busy, ...],
) -> float:
    """Seconds until the stream's history is computed on an engine, one frame at least, and by which
    other streams get later for it."""
    cost, move_s = costs.engines[engine.name], 0.0
    start = stream.held.get(engine.name, 0)
    if engine.name == stream.ingest_engine:
        start += stream.ordered_tokens
    else:
        there = stream.held.get(stream.ingest_engine, 0)
        if engine.free_cells + start < stream.history_tokens:
            return float("inf")
        if there > start and (stream.ingest_engine, engine.name) in state.importable:
            move_s = _move_s(there - start, stream.ingest_engine, engine, costs)
            start = there
    tokens = max(stream.frame_tokens, stream.history_tokens - start)
    own = cost.prefill_s(tokens, stream.history_tokens, engine.chunk_tokens)
    history = engine.ingest_history_tokens
    lacking = _lacking(engine, stream, state)
    before = max(engine.ingest_tokens, sum(lacking))
    ahead = cost.prefill_s(before, history, engine.chunk_tokens)
    others = sum(min(own, cost.prefill_s(n, history, engine.chunk_tokens)) for n in lacking)
    factor = costs.slowdown(engine.name, Activity.PREFILL, busy)
    work = factor * (ahead + own)
    waiting = min(work / engine.ingest_share, work + _answering_s(engine, cost))
    return 2.0 * move_s + waiting + factor * others


def _lacking(engine: EngineState, but: StreamState, state: PlanningState) -> list[int]:
    """Tokens of the other streams of an engine that are registered and not computed there."""
    return [
        max(0, s.history_tokens - s.held.get(engine.name, 0))
        for s in state.streams
        if s is not but and s.ingest_engine == engine.name
    ]


def _has_hardly_begun(stream: StreamState) -> bool:
    """What all histories begin with is not worth a thought."""
    return stream.ordered_tokens + max(stream.held.values(), default=0) < stream.frame_tokens


def _answering_s(engine: EngineState, cost: EngineCosts) -> float:
    """About how long the answers that run now take if the engine does nothing else. Those that wait
    for their history may wait for this very stream."""
    answers = [answer for answer in engine.answers if answer.ready_in_s <= 0.0]
    if not answers:
        return 0.0
    running = min(len(answers), engine.max_parallel) if engine.batching else 1
    history = sum(answer.history_tokens for answer in answers) / len(answers)
    tokens = sum(answer.expected_tokens for answer in answers)
    return tokens * cost.decode.seconds(running, history) / running


def _move_s(tokens: int, source: str, engine: EngineState, costs: CostModel) -> float:
    moves, n_bytes = ceil(tokens / RANGE_TOKENS), tokens * engine.cell_bytes
    export, import_ = costs.engines[source].export, costs.engines[engine.name].import_
    return moves * (export.fixed_s + import_.fixed_s) + n_bytes * (export.byte_s + import_.byte_s)
