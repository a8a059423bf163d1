"""All complete ways to answer a question, with what each would take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from edge_vlm_ros.engines.step_record import Activity

from .context_time import ContextTime, ContextTimes, busy_with
from .costs import CostModel
from .plan import Alternative, Objective
from .state import AnswerLoad, EngineState, PlanningState, QuestionState
from .timeline import EngineTimeline, Pace, Unfolded

NO_CELLS = "not enough free cells now"


@dataclass(frozen=True)
class _OnOne:
    """A question that stays on one engine, by the path that is there first."""

    context: ContextTime
    wait_s: float
    """For cells; ``context`` comes after it."""
    after: Unfolded


class Comparison:
    """One question in one state. Engines are looked at once, alternatives are put together from
    the parts: when the history is there (context_time.py), how the prefill engine's work unfolds
    with the question and how the decode engine's does with the answer (timeline.py).

    On one engine every path is unfolded that costs the engine other work than the earliest one; of
    handoffs, and of paths that cost the same, the times are as much later as their history is.

    An engine that is short of cells gives them back when the answers that were given to it before,
    and have not begun, begin: until then it is waited. ``share_s`` is the penalty of each engine.
    """

    def __init__(
        self,
        state: PlanningState,
        question: QuestionState,
        costs: CostModel,
        objective: Objective = "completion",
        share_s: Mapping[str, float] | None = None,
    ) -> None:
        self._state = state
        self._question = question
        self._costs = costs
        self._objective: Objective = objective
        self._share_s = share_s or {}
        self._busy = busy_with(state)
        self._times = ContextTimes(
            state,
            question,
            costs,
            self._busy,
            answering_s=lambda engine: self._timeline(engine).without.answering_s,
            step_s=lambda engine: self._timeline(engine).step_s,
        )
        self._timelines: dict[str, EngineTimeline] = {}
        self._on_one: dict[str, _OnOne | None] = {}
        self._contexts: dict[tuple[str, str], list[ContextTime]] = {}
        self._prefilled: dict[str, Unfolded] = {}
        self._frames = ingest_loads(state, costs)

    def alternatives(
        self, prefill: Collection[str] | None = None, decode: Collection[str] | None = None
    ) -> list[Alternative]:
        """Those whose engines are in ``prefill`` and ``decode`` (None: all) and are what the
        question asks for. Handoffs that cannot be better than staying are left out unless they are
        asked for."""
        question, engines = self._question, self._state.engines
        wanted = question.prefill_engine or ("" if question.may_hand_off else question.engine)
        firsts = [e for e in engines if wanted in ("", e.name) and _is_in(e.name, prefill)]
        seconds = [e for e in engines if question.engine in ("", e.name) and _is_in(e.name, decode)]
        found: list[Alternative] = []
        for engine in firsts:
            if engine in seconds:
                found += self._staying(engine)
        if question.may_hand_off:
            least = min(
                (a.score(self._objective) for a in found if not a.blocked), default=float("inf")
            )
            for first in firsts:
                for second in seconds:
                    if first is not second and (wanted or self._may_win(first, second, least)):
                        found.append(self._handed_off(first, second))
        return found

    # ---------------------------------------------------------------- one engine
    def _staying(self, engine: EngineState) -> list[Alternative]:
        contexts = self._paths(engine, self._question.path)
        one = self._stay(engine)
        if one is None:
            return [
                self._blocked(engine, engine, context.path, context.blocked) for context in contexts
            ]
        whole = self._on_one_engine(engine, one)
        found = []
        for context in contexts:
            if context.blocked:
                found.append(self._blocked(engine, engine, context.path, context.blocked))
            elif context.computed_s != one.context.computed_s:
                other = _OnOne(context, one.wait_s, self._with_answer(engine, context, one.wait_s))
                found.append(self._on_one_engine(engine, other))
            else:
                later = context.seconds - one.context.seconds
                found.append(
                    replace(
                        whole,
                        path=context.path,
                        context_s=whole.context_s + later,
                        first_token_s=whole.first_token_s + later,
                        finished_s=whole.finished_s + later,
                    )
                )
        return found

    def _on_one_engine(self, engine: EngineState, one: _OnOne) -> Alternative:
        after = one.after
        return Alternative(
            path=one.context.path,
            prefill_engine=engine.name,
            decode_engine=engine.name,
            context_s=one.wait_s + one.context.seconds,
            first_token_s=after.first_token_s,
            finished_s=after.finished_s,
            others_s=self._delay_of_others(engine, after),
            ingest_s=self._delay_of_frames(engine, after, one.context.computed_s),
            last_s=self._delay_of_last({engine.name: after}),
            share_s=self._share_s.get(engine.name, 0.0),
            blocked=self._lack_of_cells(engine),
        )

    def _stay(self, engine: EngineState) -> _OnOne | None:
        """None when the engine cannot get the history."""
        if engine.name not in self._on_one:
            best = _earliest(self._paths(engine, self._question.path))
            one = None
            if best is not None:
                wait_s = self._wait_for_cells(engine)
                one = _OnOne(best, wait_s, self._with_answer(engine, best, wait_s))
            self._on_one[engine.name] = one
        return self._on_one[engine.name]

    def _with_answer(self, engine: EngineState, context: ContextTime, wait_s: float) -> Unfolded:
        question = self._question
        load = AnswerLoad(
            question.history_tokens,
            question.prompt_tokens,
            question.expected_tokens,
            wait_s + context.seconds,
        )
        return self._timeline(engine).with_answer(load, context.computed_s)

    # ---------------------------------------------------------------- two engines
    def _may_win(self, first: EngineState, second: EngineState, least: float) -> bool:
        """A handoff starts with what ``first`` alone would start with. It can be better only if
        the second engine can go on before it would have had the first token itself; from there on
        it is no faster than it would be then, when fewer answers are left beside it."""
        if (first.name, second.name) not in self._state.importable:
            return False
        one, other = self._stay(first), self._stay(second)
        if one is None or other is None:
            return False
        start = one.after.first_token_s + self._move_s(first, second)
        if start >= other.after.first_token_s:
            return False
        if self._objective == "first_token":
            return one.after.first_token_s < least
        return start + other.after.finished_s - other.after.first_token_s < least

    def _handed_off(self, first: EngineState, second: EngineState) -> Alternative:
        one, there = self._stay(first), self._there(second)
        if one is None or there is None:
            path = self._question.path or "replay"
            return self._blocked(first, second, path, "an engine cannot get the history")
        question, prefill = self._question, self._prefill_only(first, one)
        # The second engine is asked for the history once the first has it.
        ready = one.wait_s + one.context.seconds + there.seconds + self._wait_for_cells(second)
        moves = (first.name, second.name) in self._state.importable
        move_s = self._move_s(first, second) if moves else 0.0
        rest = AnswerLoad(
            question.history_tokens,
            0 if moves else question.prompt_tokens + 1,
            question.expected_tokens - 1.0,
            max(prefill.first_token_s + move_s, ready),
        )
        after = self._timeline(second).with_answer(rest, there.computed_s)
        return Alternative(
            path=one.context.path,
            prefill_engine=first.name,
            decode_engine=second.name,
            context_s=one.wait_s + one.context.seconds,
            first_token_s=prefill.first_token_s,
            finished_s=max(after.finished_s, prefill.first_token_s),
            others_s=self._delay_of_others(first, prefill) + self._delay_of_others(second, after),
            ingest_s=self._delay_of_frames(first, prefill, one.context.computed_s)
            + self._delay_of_frames(second, after, there.computed_s),
            last_s=self._delay_of_last({first.name: prefill, second.name: after}),
            share_s=self._share_s.get(second.name, 0.0),
            blocked=self._lack_of_cells(first) or self._lack_of_cells(second),
        )

    def _there(self, second: EngineState) -> ContextTime | None:
        """How the second engine gets the history; a path that is asked for is the first's, but
        for replay."""
        asked = "replay" if self._question.path == "replay" else ""
        return _earliest(self._paths(second, asked)) or _earliest(self._paths(second, ""))

    def _prefill_only(self, first: EngineState, one: _OnOne) -> Unfolded:
        if first.name not in self._prefilled:
            question = self._question
            load = AnswerLoad(
                question.history_tokens,
                question.prompt_tokens,
                1.0,
                one.wait_s + one.context.seconds,
            )
            timeline = self._timeline(first)
            self._prefilled[first.name] = timeline.with_answer(load, one.context.computed_s)
        return self._prefilled[first.name]

    def _move_s(self, first: EngineState, second: EngineState) -> float:
        """The question's own KV from one engine to the other."""
        n_bytes = self._question.prompt_tokens * first.cell_bytes
        costs = self._costs.engines
        export, import_ = costs[first.name].export, costs[second.name].import_
        return export.seconds(n_bytes) + import_.seconds(n_bytes)

    # ---------------------------------------------------------------- parts
    def _paths(self, engine: EngineState, asked: str) -> list[ContextTime]:
        if (engine.name, asked) not in self._contexts:
            self._contexts[engine.name, asked] = self._times.paths(engine, asked)
        return self._contexts[engine.name, asked]

    def _timeline(self, engine: EngineState) -> EngineTimeline:
        if engine.name not in self._timelines:
            ingest_s, costs = self._times.ingest_s(engine), self._costs.engines[engine.name]
            self._timelines[engine.name] = EngineTimeline(
                self._with_unplaced(engine, ingest_s), costs, self._pace(engine), ingest_s
            )
        return self._timelines[engine.name]

    def _with_unplaced(self, engine: EngineState, ingest_s: float) -> EngineState:
        """The engine with the questions that are expected to go where their stream is ingested,
        once their frames are encoded and what is ordered there is computed."""
        here = [other for other in self._state.unplaced if other.engine == engine.name]
        if not here:
            return engine
        frame_s = max(self._costs.encode_s.values(), default=0.0)
        ready_s = [max(ingest_s, other.frames * frame_s) for other in here]
        loads = [replace(o.load, ready_in_s=s) for o, s in zip(here, ready_s, strict=True)]
        return replace(engine, answers=(*engine.answers, *loads))

    def _pace(self, engine: EngineState) -> Pace:
        busy, costs = self._busy[engine.name], self._costs
        return Pace(
            costs.slowdown(engine.name, Activity.PREFILL, busy),
            costs.slowdown(engine.name, Activity.DECODE, busy),
        )

    def _delay_of_others(self, engine: EngineState, after: Unfolded) -> float:
        """Of the answers on the same engine, and of those on engines that are slowed down because
        this one will be at work for longer. What counts of them is what counts of the question."""
        before = self._timeline(engine).without
        if self._objective == "first_token":
            return max(0.0, after.others_first_s - before.others_first_s)
        delay = max(0.0, after.others_s - before.others_s)
        if not self._costs.slowdowns:
            return delay
        doing = [(engine.name, Activity.DECODE)]
        for other in self._state.engines:
            if other is engine or not other.answers:
                continue
            factor = self._costs.slowdown(other.name, Activity.DECODE, doing)
            if factor > 1.0:
                n = len(other.answers)
                mean_end = self._timeline(other).without.others_s / n
                beside = min(mean_end, after.answered_s) - min(mean_end, before.answered_s)
                delay += (factor - 1.0) * n * max(0.0, beside)
        return delay

    def _delay_of_last(self, after: Mapping[str, Unfolded]) -> float:
        """Where delays of single answers are nearly equal, the way with which all are done first is
        better for what comes next."""
        if self._objective == "first_token":
            return 0.0
        before = {e.name: self._timeline(e).without for e in self._state.engines}
        ends = [unfolded.answered_s for unfolded in {**before, **after}.values()]
        return max(ends) - max(unfolded.answered_s for unfolded in before.values())

    def _delay_of_frames(self, engine: EngineState, after: Unfolded, computed_s: float) -> float:
        """How much later the frames ordered before are there (they take turns with what is
        computed for the question), the same of those that come meanwhile, and how far ingestion
        falls behind its rate while answers run for longer."""
        before, load = self._timeline(engine).without, self._frames.get(engine.name, 0.0)
        if computed_s > 0.0:
            later = min(computed_s, self._times.ingest_s(engine)) + min(1.0, load) * computed_s
        else:
            later = max(0.0, after.ingested_s - before.ingested_s)
        longer = max(0.0, after.answered_s - max(before.answered_s, before.ingested_s))
        return later + max(0.0, load - engine.ingest_share) * longer

    def _lacks_cells(self, engine: EngineState) -> bool:
        held, needed = self._question.of(engine.name), self._question.history_tokens
        if max(held.computed, held.submitted) >= needed:
            return False
        return engine.free_cells + held.reserved < needed

    def _wait_for_cells(self, engine: EngineState) -> float:
        """Until the last answer has begun that keeps cells for its history; 0 when unknown."""
        if not self._lacks_cells(engine):
            return 0.0
        return max((answer.ready_in_s for answer in engine.answers), default=0.0)

    def _lack_of_cells(self, engine: EngineState) -> str:
        """Nobody knows when there will be cells."""
        lacks = self._lacks_cells(engine) and not self._wait_for_cells(engine)
        return NO_CELLS if lacks else ""

    def _blocked(self, first: EngineState, second: EngineState, path: str, why: str) -> Alternative:
        return Alternative(path, first.name, second.name, 0.0, 0.0, 0.0, blocked=why)


def compare(
    state: PlanningState,
    question: QuestionState,
    costs: CostModel,
    objective: Objective,
    engine: str = "",
    share_s: Mapping[str, float] | None = None,
) -> list[Alternative]:
    """Everything that the question asks for, else everything on ``engine`` if it is given; when a
    path is asked for that nobody can go, as if it were not. Never empty."""
    question = among_usable(question, state)
    decode = question.engine or engine
    prefill = question.prefill_engine or decode
    firsts, seconds = ({prefill} if engine else None), ({decode} if engine else None)
    comparison = Comparison(state, question, costs, objective, share_s)
    found = comparison.alternatives(firsts, seconds)
    if _possible(found):
        return found
    if engine:
        found = comparison.alternatives()  # others can go the path
        if _possible(found):
            return found
    free = Comparison(state, replace(question, path=""), costs, objective, share_s)
    return free.alternatives(firsts, seconds) or free.alternatives()


def among_usable(question: QuestionState, state: PlanningState) -> QuestionState:
    """The question without wishes for engines that do not work."""
    if not question.engine and not question.prefill_engine:
        return question
    names = {engine.name for engine in state.engines}
    prefill = question.prefill_engine if question.may_hand_off else ""
    return replace(
        question,
        engine=question.engine if question.engine in names else "",
        prefill_engine=prefill if prefill in names else "",
    )


def usable_ways(found: list[Alternative]) -> list[Alternative]:
    """Those that are possible; if there are none those that only lack cells, which will be waited
    for; else all."""
    open_ones = [a for a in found if not a.blocked]
    return open_ones or [a for a in found if a.blocked == NO_CELLS] or found


def ingest_loads(state: PlanningState, costs: CostModel) -> dict[str, float]:
    """Part of each engine's time that the frames of its streams take at their rates."""
    loads = {engine.name: 0.0 for engine in state.engines}
    chunks = {engine.name: engine.chunk_tokens for engine in state.engines}
    for stream in state.streams:
        name = stream.ingest_engine
        if name in loads:
            seconds = costs.engines[name].prefill_s(
                stream.frame_tokens, stream.history_tokens, chunks[name]
            )
            loads[name] += stream.frame_rate_hz * seconds
    return loads


def _earliest(contexts: list[ContextTime]) -> ContextTime | None:
    """The first in order of equals: local before import before replay."""
    possible = [context for context in contexts if not context.blocked]
    return min(possible, key=lambda context: context.seconds, default=None)


def _possible(found: list[Alternative]) -> bool:
    return any(a.blocked in ("", NO_CELLS) for a in found)


def _is_in(name: str, names: Collection[str] | None) -> bool:
    return names is None or name in names
