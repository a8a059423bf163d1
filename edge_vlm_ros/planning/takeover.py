"""When an engine that has computed its own frames goes on with those of another stream.

A fast and a slow engine that read a camera each are not done at the same time. The fast one may
take over what the slow one has not computed, and the slow one answer what is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edge_vlm_ros.engines.step_record import Activity

from .context_time import busy_with
from .costs import CostModel
from .plan import Alternative
from .state import AnswerLoad, EngineState, PlanningState, QuestionState, StreamState
from .timeline import Pace, unfold

GAIN = 0.05
"""First tokens must come sooner by so much: predictions are not that exact."""

MOST_QUESTIONS = 8
"""With more it is not looked at: each is planned twice for it, in the coordinator's time."""

LEAST_S = 0.1
"""What an engine has done so soon is not worth that time."""

Choose = Callable[[PlanningState, QuestionState], Alternative]


def stream_to_take_over(
    state: PlanningState,
    questions: Sequence[QuestionState],
    engine: str,
    costs: CostModel,
    choose: Choose,
) -> str:
    """The stream whose frames ``engine``, which has none to compute, should go on with; empty:
    none. Looked at is the one with most to be computed.

    ``questions`` are those that no engine has begun, in the order in which they can be; ``state``
    is without them. What is compared is the sum of their first tokens, if each in turn goes where
    ``choose`` says: with the frames where they are now, and with them here.
    """
    this = state.engine(engine)
    if this.ingest_tokens or not questions or len(questions) > MOST_QUESTIONS:
        return ""
    awaited = {question.stream for question in questions}
    found = [s for s in state.streams if s.name in awaited and _can_take_over(this, s, state)]
    stream = max(found, key=lambda stream: stream.ordered_tokens, default=None)
    if stream is None or _left_s(stream, state, costs) < LEAST_S:
        return ""
    now_s = _first_tokens_s(_half_a_frame_on(state, stream), questions, costs, choose)
    moved = [_moved(question, stream, engine) for question in questions]
    then_s = _first_tokens_s(_with_frames(state, stream, this), moved, costs, choose)
    return stream.name if then_s < (1.0 - GAIN) * now_s else ""


def _can_take_over(engine: EngineState, stream: StreamState, state: PlanningState) -> bool:
    """Whether more is left than the frame that is being computed, and the engine can go on."""
    source = stream.ingest_engine
    return (
        not stream.stays
        and stream.ordered_tokens > stream.frame_tokens
        and (source, engine.name) in state.importable
        and engine.spare_cells + stream.held.get(engine.name, 0) >= stream.history_tokens
    )


def _left_s(stream: StreamState, state: PlanningState, costs: CostModel) -> float:
    source = state.engine(stream.ingest_engine)
    history = stream.held.get(source.name, 0)
    cost = costs.engines[source.name]
    return cost.prefill_s(stream.ordered_tokens, history, source.chunk_tokens)


def _half_a_frame_on(state: PlanningState, stream: StreamState) -> PlanningState:
    """What is being computed is half done, on average; it is lost when it is taken over."""
    source = state.engine(stream.ingest_engine)
    left = source.ingest_tokens - stream.frame_tokens // 2
    return _with_engine(state, replace(source, ingest_tokens=left))


def _with_frames(state: PlanningState, stream: StreamState, engine: EngineState) -> PlanningState:
    """The engine imports what the other one has computed, and computes the rest."""
    source, there = state.engine(stream.ingest_engine), stream.held.get(engine.name, 0)
    start = max(there, stream.held.get(source.name, 0))
    left, n_bytes = stream.history_tokens - start, (start - there) * engine.cell_bytes
    source = replace(
        source,
        ingest_tokens=source.ingest_tokens - stream.ordered_tokens,
        export_bytes=source.export_bytes + n_bytes,
    )
    engine = replace(
        engine,
        ingest_tokens=left,
        ingest_history_tokens=start,
        import_bytes=engine.import_bytes + n_bytes,
    )
    now = replace(stream, ingest_engine=engine.name, ordered_tokens=left)
    streams = tuple(now if other is stream else other for other in state.streams)
    return replace(_with_engine(_with_engine(state, source), engine), streams=streams)


def _moved(question: QuestionState, stream: StreamState, engine: str) -> QuestionState:
    """With the rest of its history on its way on ``engine``."""
    if question.stream != stream.name:
        return question
    source = question.of(stream.ingest_engine)
    held = {
        **question.held,
        stream.ingest_engine: replace(source, submitted=source.computed),
        engine: replace(question.of(engine), submitted=question.history_tokens),
    }
    return replace(question, held=held)


def _first_tokens_s(
    state: PlanningState, questions: Sequence[QuestionState], costs: CostModel, choose: Choose
) -> float:
    for question in questions:
        state = _with_question(state, question, choose(state, question))
    busy, total_s = busy_with(state), 0.0
    for engine in state.engines:
        cost, beside = costs.engines[engine.name], busy[engine.name]
        pace = Pace(
            costs.slowdown(engine.name, Activity.PREFILL, beside),
            costs.slowdown(engine.name, Activity.DECODE, beside),
        )
        ingest_s = pace.prefill * cost.prefill_s(
            engine.ingest_tokens, engine.ingest_history_tokens, engine.chunk_tokens
        )
        total_s += unfold(engine, cost, pace, ingest_s).others_first_s
    return total_s


def _with_question(
    state: PlanningState, question: QuestionState, way: Alternative
) -> PlanningState:
    history, prompt = question.history_tokens, question.prompt_tokens
    first, tokens = state.engine(way.prefill_engine), question.expected_tokens
    if way.path == "replay":
        held = question.of(first.name)
        left = history - max(held.computed, held.submitted)
        first = replace(first, ingest_tokens=first.ingest_tokens + left)
    here = 1.0 if way.is_handoff else tokens
    state = _with_answer(state, first, AnswerLoad(history, prompt, here, way.context_s))
    if not way.is_handoff:
        return state
    second = state.engine(way.decode_engine)
    return _with_answer(state, second, AnswerLoad(history, 0, tokens - 1.0, way.first_token_s))


def _with_answer(state: PlanningState, engine: EngineState, load: AnswerLoad) -> PlanningState:
    return _with_engine(state, replace(engine, answers=(*engine.answers, load)))


def _with_engine(state: PlanningState, engine: EngineState) -> PlanningState:
    engines = tuple(engine if e.name == engine.name else e for e in state.engines)
    return replace(state, engines=engines)
