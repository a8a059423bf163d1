"""Which running answer should go on on another engine.

Plans are made when questions come; what they foresaw may turn out otherwise, and an engine that is
done early helps no answer that was placed before. The engine that goes on gets the history like for
any question, and prefills the answer's own tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from edge_vlm_ros.engines.step_record import Activity

from .context_time import ContextTime, ContextTimes, busy_with
from .costs import CostModel
from .plan import Alternative, Plan
from .state import AnswerLoad, EngineState, PlanningState, QuestionState
from .timeline import EngineTimeline, Pace, Unfolded

GAIN = 0.1
"""What moves must save so much of the time until its engine would be done, besides twice the time
until it goes on: predictions are not that exact."""


@dataclass(frozen=True)
class RunningAnswer:
    """An answer that is being decoded and may move.

    The ``prompt_tokens`` of ``question`` are those to be prefilled elsewhere, generated ones
    included; its ``expected_tokens`` are still to come.
    """

    answer_id: int
    engine: str
    question: QuestionState

    @property
    def load(self) -> AnswerLoad:
        """What it is on its engine."""
        return AnswerLoad(self.question.history_tokens, 0, self.question.expected_tokens)

    def load_elsewhere(self, ready_in_s: float) -> AnswerLoad:
        return replace(self.load, prompt_tokens=self.question.prompt_tokens, ready_in_s=ready_in_s)


@dataclass(frozen=True)
class Move:
    """``gain_s`` is saved, summed over all running answers and the end of the last; ``plan`` has
    what is foreseen for the one that moves."""

    answer_id: int
    engine: str
    gain_s: float
    plan: Plan


def best_move(
    state: PlanningState, running: Sequence[RunningAnswer], costs: CostModel
) -> Move | None:
    """From the engine that would be done last; None when nothing is gained.

    Compared is the sum of the ends of all answers, and the end of the last one, as things are and
    with the move. While the history is made ready on the other engine the answer goes on; that is
    not counted.
    """
    now = {engine.name: _timeline(engine, costs) for engine in state.engines}
    ends = _ends({name: timeline.without for name, timeline in now.items()}, costs)
    last = max(ends, key=lambda name: ends[name].answered_s, default="")
    movable = [answer for answer in running if answer.engine == last]
    moves = [
        _move(state, _longest(movable, target), target, costs, now, ends)
        for target in state.engines
        if movable
        and (last, target.name) in state.equal
        and len(target.answers) < target.max_parallel
        and ends[target.name].answered_s < ends[last].answered_s
    ]
    possible = [move for move in moves if move is not None]
    return max(possible, key=lambda move: (move.gain_s, -move.answer_id), default=None)


def may_help(running: Mapping[str, int], costs: CostModel) -> bool:
    """Whether an engine would decode one more answer sooner than some other does, with so many
    ``running`` answers on each: else no answer moves, which is known at once."""
    return any(
        n and costs.engines[other].decode.step_s(m + 1) < costs.engines[engine].decode.step_s(n)
        for engine, n in running.items()
        for other, m in running.items()
        if other != engine
    )


def _longest(answers: Sequence[RunningAnswer], target: EngineState) -> RunningAnswer:
    """The one with most to come, of those whose history the engine has if there are any."""

    def key(answer: RunningAnswer) -> tuple[bool, float, int]:
        question = answer.question
        is_held = question.of(target.name).computed >= question.history_tokens
        return is_held, question.expected_tokens, -answer.answer_id

    return max(answers, key=key)


def _move(
    state: PlanningState,
    answer: RunningAnswer,
    target: EngineState,
    costs: CostModel,
    now: Mapping[str, EngineTimeline],
    ends: Mapping[str, _End],
) -> Move | None:
    source, question = state.engine(answer.engine), answer.question
    # However idle the target is, it may not be slower by itself than there is time.
    least_s = question.expected_tokens * costs.engines[target.name].decode.step_s(1)
    if least_s >= ends[source.name].answered_s:
        return None
    context = _context(state, question, target, costs, now)
    if context is None:
        return None
    rest = list(source.answers)
    rest.remove(answer.load)
    load = answer.load_elsewhere(context.seconds)
    arrived = now[target.name].with_answer(load, context.computed_s)
    after = {name: timeline.without for name, timeline in now.items()}
    after[source.name] = _timeline(replace(source, answers=tuple(rest)), costs).without
    after[target.name] = arrived
    then = _ends(after, costs)
    gain_s = _cost(ends.values()) - _cost(then.values())
    if gain_s <= GAIN * ends[source.name].answered_s + 2.0 * arrived.first_token_s:
        return None
    way = Alternative(
        path=context.path,
        prefill_engine=source.name,
        decode_engine=target.name,
        context_s=context.seconds,
        first_token_s=0.0,
        finished_s=then[target.name].pace * arrived.finished_s,
    )
    reason = f"it goes on on {target.name}: all answers end {gain_s:.2f} s sooner in sum"
    return Move(answer.answer_id, target.name, gain_s, Plan("sdep", way, (way,), reason))


def _context(
    state: PlanningState,
    question: QuestionState,
    target: EngineState,
    costs: CostModel,
    now: Mapping[str, EngineTimeline],
) -> ContextTime | None:
    """How the target gets the history soonest, if it can."""
    held = question.of(target.name)
    if held.computed < question.history_tokens:
        if target.free_cells + held.reserved < question.history_tokens:
            return None
    times = ContextTimes(
        state,
        question,
        costs,
        busy_with(state),
        answering_s=lambda engine: now[engine.name].without.answering_s,
        step_s=lambda engine: now[engine.name].step_s,
    )
    ways = [way for way in times.paths(target, "") if not way.blocked]
    return min(ways, key=lambda way: way.seconds, default=None)


def _timeline(engine: EngineState, costs: CostModel) -> EngineTimeline:
    """With all other engines idle."""
    cost = costs.engines[engine.name]
    ingest_s = cost.prefill_s(
        engine.ingest_tokens, engine.ingest_history_tokens, engine.chunk_tokens
    )
    return EngineTimeline(engine, cost, Pace(), ingest_s)


@dataclass(frozen=True)
class _End:
    """Of an engine's work: the sum of the ends of its answers and the last of them, seconds.
    ``pace``: how many times longer all takes than with the other engines idle."""

    total_s: float
    answered_s: float
    pace: float


def _ends(alone: Mapping[str, Unfolded], costs: CostModel) -> dict[str, _End]:
    """The engines beside each other, from what each would do by itself. They slow each other down
    for as long as both have answers to decode."""
    left = {name: each.answered_s for name, each in alone.items()}
    ends = dict.fromkeys(left, 0.0)
    now = 0.0
    while busy := [name for name, seconds in left.items() if seconds > 0.0]:
        doing = [(name, Activity.DECODE) for name in busy]
        factors = {name: costs.slowdown(name, Activity.DECODE, doing) for name in busy}
        first = min(busy, key=lambda name: left[name] * factors[name])
        step = left[first] * factors[first]
        now += step
        for name in busy:
            left[name] -= step / factors[name]
            ends[name] = now
        left[first] = 0.0
    return {name: _end(each, ends[name]) for name, each in alone.items()}


def _end(alone: Unfolded, answered_s: float) -> _End:
    pace = answered_s / alone.answered_s if alone.answered_s else 1.0
    return _End(pace * (alone.others_s + alone.finished_s), answered_s, pace)


def _cost(ends: Collection[_End]) -> float:
    """All answers' ends, and the last."""
    return sum(end.total_s for end in ends) + max(end.answered_s for end in ends)
