"""All complete ways to answer a question, with what each would take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from edge_vlm_ros.engines.step_record import Activity

from .context_time import ContextTime, ContextTimes, busy_with
from .costs import CostModel
from .plan import Alternative
from .state import AnswerLoad, EngineState, PlanningState, QuestionState
from .timeline import Pace, Unfolded, pace, unfold

NO_CELLS = "not enough free cells now"


class Comparison:
    """One question in one state. Engines are looked at once, alternatives are put together from
    the parts: when the history is there (context_time.py), how the prefill engine's work unfolds
    with the question and how the decode engine's does with the answer (timeline.py).

    Paths to the same engines differ in when the history is there only. The earliest is unfolded,
    the times of the others are taken to be as much later as their history is.
    """

    def __init__(self, state: PlanningState, question: QuestionState, costs: CostModel) -> None:
        self._state = state
        self._question = question
        self._costs = costs
        self._busy = busy_with(state)
        self._times = ContextTimes(state, question, costs, self._busy)
        self._paces: dict[str, Pace] = {}
        self._before: dict[str, Unfolded] = {}
        self._contexts = {e.name: self._times.all_paths(e) for e in state.engines}

    def alternatives(
        self, prefill: Collection[str] | None = None, decode: Collection[str] | None = None
    ) -> list[Alternative]:
        """Those whose engines are in ``prefill`` and ``decode`` (None: all) and are what the
        question asks for."""
        question, found = self._question, []
        for engine in self._state.engines:
            wanted = question.prefill_engine or ("" if question.may_hand_off else question.engine)
            if wanted not in ("", engine.name) or not _is_in(engine.name, prefill):
                continue
            for other in self._state.engines:
                if question.engine not in ("", other.name) or not _is_in(other.name, decode):
                    continue
                if other is engine:
                    found += self._on_one(engine)
                elif question.may_hand_off and question.prefill_engine in ("", engine.name):
                    found += self._handed_off(engine, other)
        return found

    # ---------------------------------------------------------------- one engine
    def _on_one(self, engine: EngineState) -> list[Alternative]:
        contexts = self._contexts[engine.name]
        best = _earliest(contexts)
        if best is None:
            return [self._blocked(engine, engine, context.path, context.blocked)
                    for context in contexts]  # fmt: skip
        question = self._question
        new = AnswerLoad(
            question.history_tokens,
            question.prompt_tokens,
            question.expected_tokens,
            best.seconds,
        )
        after = self._unfold(engine, new, self._extra_ingest(engine, best))
        whole = Alternative(
            path=best.path,
            prefill_engine=engine.name,
            decode_engine=engine.name,
            context_s=best.seconds,
            first_token_s=after.first_token_s,
            finished_s=after.finished_s,
            others_s=self._delay_of_others(engine, after, after.finished_s),
            ingest_s=self._delay_of_frames(engine, after, best),
            blocked=self._lack_of_cells(engine),
        )
        return [self._by_path(whole, best, context) for context in contexts]

    def _by_path(self, whole: Alternative, best: ContextTime, context: ContextTime) -> Alternative:
        if context.blocked:
            return Alternative(
                context.path, whole.prefill_engine, whole.decode_engine, 0.0, 0.0, 0.0,
                blocked=context.blocked,
            )  # fmt: skip
        later = context.seconds - best.seconds
        return replace(
            whole,
            path=context.path,
            context_s=context.seconds,
            first_token_s=whole.first_token_s + later,
            finished_s=whole.finished_s + later,
        )

    # ---------------------------------------------------------------- two engines
    def _handed_off(self, first: EngineState, second: EngineState) -> list[Alternative]:
        contexts = self._contexts[first.name]
        best, there = _earliest(contexts), _earliest(self._contexts[second.name])
        if best is None or there is None:
            name = first.name if best is None else second.name
            context = next(c for c in self._contexts[name] if c.blocked)
            return [self._blocked(first, second, context.path, f"{name} {context.blocked}")]
        if (first.name, second.name) not in self._state.importable:
            return [self._blocked(first, second, best.path, "KV cannot be moved between them")]
        question = self._question
        prefill = self._unfold(
            first,
            AnswerLoad(question.history_tokens, question.prompt_tokens, 1.0, best.seconds),
            self._extra_ingest(first, best),
        )
        ready = max(prefill.first_token_s + self._move_s(first, second), there.seconds)
        rest = AnswerLoad(
            question.history_tokens, 0, max(1.0, question.expected_tokens - 1.0), ready
        )
        after = self._unfold(second, rest, self._extra_ingest(second, there))
        others = self._delay_of_others(first, prefill, prefill.finished_s)
        return [
            Alternative(
                path=best.path,
                prefill_engine=first.name,
                decode_engine=second.name,
                context_s=best.seconds,
                first_token_s=prefill.first_token_s,
                finished_s=after.finished_s,
                others_s=others + self._delay_of_others(second, after, after.finished_s),
                ingest_s=self._delay_of_frames(first, prefill, best)
                + self._delay_of_frames(second, after, there),
                blocked=self._lack_of_cells(first) or self._lack_of_cells(second),
            )
        ]

    def _move_s(self, first: EngineState, second: EngineState) -> float:
        """The question's own KV from one engine to the other."""
        n_bytes = self._question.prompt_tokens * first.cell_bytes
        costs = self._costs.engines
        return costs[first.name].export.seconds(n_bytes) + costs[second.name].import_.seconds(
            n_bytes
        )

    # ---------------------------------------------------------------- parts
    def _unfold(self, engine: EngineState, new: AnswerLoad | None, extra_s: float) -> Unfolded:
        ingest_s = self._times.ingest_s(engine) + extra_s
        costs = self._costs.engines[engine.name]
        return unfold(engine, costs, self._pace(engine), ingest_s, new)

    def _extra_ingest(self, engine: EngineState, context: ContextTime) -> float:
        """Work that is ordered for the question besides what is ordered already."""
        return context.computed_s

    def _without(self, engine: EngineState) -> Unfolded:
        if engine.name not in self._before:
            self._before[engine.name] = self._unfold(engine, None, 0.0)
        return self._before[engine.name]

    def _pace(self, engine: EngineState) -> Pace:
        if engine.name not in self._paces:
            busy, costs = self._busy[engine.name], self._costs
            histories = [answer.history_tokens for answer in engine.answers]
            histories.append(self._question.history_tokens)
            self._paces[engine.name] = pace(
                engine,
                costs.engines[engine.name],
                sum(histories) / len(histories),
                costs.slowdown(engine.name, Activity.PREFILL, busy),
                costs.slowdown(engine.name, Activity.DECODE, busy),
            )
        return self._paces[engine.name]

    def _delay_of_others(self, engine: EngineState, after: Unfolded, own_s: float) -> float:
        """Of the answers on the same engine, and of those on engines that are slowed down because
        this one, which has nothing to do now, will be at work for ``own_s``."""
        delay = after.others_s - self._without(engine).others_s
        if engine.answers or engine.ingest_tokens:
            return max(0.0, delay)
        doing = [(engine.name, Activity.DECODE)]
        for other in self._state.engines:
            if other is not engine and other.answers:
                factor = self._costs.slowdown(other.name, Activity.DECODE, doing)
                beside = min(self._without(other).others_s, len(other.answers) * own_s)
                delay += (factor - 1.0) * beside
        return max(0.0, delay)

    def _delay_of_frames(self, engine: EngineState, after: Unfolded, context: ContextTime) -> float:
        """How much later the frames ordered before are there, and how far ingestion falls behind
        its rate while the answer runs."""
        before = self._without(engine)
        later = 0.0
        if engine.ingest_tokens:
            later = max(0.0, after.ingested_s - before.ingested_s)
        lacking = self._ingest_load(engine) - engine.ingest_share
        running = max(0.0, after.finished_s - context.seconds)
        return later + max(0.0, lacking) * running

    def _ingest_load(self, engine: EngineState) -> float:
        return ingest_load(engine, self._state, self._costs)

    def _lack_of_cells(self, engine: EngineState) -> str:
        held = self._question.of(engine.name)
        if max(held.computed, held.submitted) >= self._question.history_tokens:
            return ""
        return "" if engine.free_cells >= self._question.history_tokens else NO_CELLS

    def _blocked(self, first: EngineState, second: EngineState, path: str, why: str) -> Alternative:
        return Alternative(path, first.name, second.name, 0.0, 0.0, 0.0, blocked=why)


def ingest_load(engine: EngineState, state: PlanningState, costs: CostModel) -> float:
    """Part of an engine's time that the frames of its streams take at their rates."""
    cost = costs.engines[engine.name]
    return sum(
        stream.frame_rate_hz
        * cost.prefill_s(stream.frame_tokens, stream.history_tokens, engine.chunk_tokens)
        for stream in state.streams
        if stream.ingest_engine == engine.name
    )


def _earliest(contexts: list[ContextTime]) -> ContextTime | None:
    """The first in order of equals: local before import before replay."""
    possible = [context for context in contexts if not context.blocked]
    return min(possible, key=lambda context: context.seconds, default=None)


def _is_in(name: str, names: Collection[str] | None) -> bool:
    return names is None or name in names
