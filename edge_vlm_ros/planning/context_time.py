"""When an engine can have the history that a question needs, by each path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

from edge_vlm_ros.engines.step_record import Activity

from .costs import Busy, CostModel
from .plan import PATHS
from .state import EngineState, PlanningState, QuestionState

RANGE_TOKENS = 256
"""Longest range of one export or import, as engines have it by default (transfer_tokens)."""


@dataclass(frozen=True)
class ContextTime:
    """``seconds`` until the history is there; ``computed_s`` of them is work of the engine itself
    that delays what it ingests. ``blocked`` says why the path is impossible."""

    path: str
    seconds: float = 0.0
    computed_s: float = 0.0
    blocked: str = ""


class ContextTimes:
    """For one question in one state. All formulas add up what must happen one after the other:

    - ``local``: what was ordered on the engine before (its ingestion, imports into it), until the
      newest frame is encoded if that is later, and computing what was not ordered yet;
    - ``import``: until the source has computed its part, the exports, the imports, computing what
      no source has; from host memory without the exports. Every range waits for a step of the
      engine that does it, the first for half of one;
    - ``replay``: the ingestion ordered before, and computing all that is missing.

    Computing takes turns with decode steps while answers run, a chunk for a step.
    ``answering_s`` gives the time that the answers of an engine take, ``step_s`` that of a decode
    step of an engine now.
    """

    def __init__(
        self,
        state: PlanningState,
        question: QuestionState,
        costs: CostModel,
        busy: Mapping[str, tuple[Busy, ...]],
        answering_s: Callable[[EngineState], float],
        step_s: Callable[[EngineState], float],
    ) -> None:
        self._state = state
        self._question = question
        self._costs = costs
        self._busy = busy
        self._answering_s = answering_s
        self._decode_step_s = step_s
        self._ingest: dict[str, float] = {}
        self._ingest_engine = next(
            (s.ingest_engine for s in state.streams if s.name == question.stream), ""
        )

    def paths(self, engine: EngineState, asked: str) -> list[ContextTime]:
        """In the order of PATHS; ``asked`` only, unless it is empty."""
        times = {"local": self._local, "import": self._import, "replay": self._replay}
        return [times[path](engine) for path in PATHS if asked in ("", path)]

    # ---------------------------------------------------------------- paths
    def _local(self, engine: EngineState) -> ContextTime:
        held, needed = self._question.of(engine.name), self._question.history_tokens
        if held.computed >= needed:
            return ContextTime("local")
        if held.submitted < needed and engine.name != self._ingest_engine:
            return ContextTime("local", blocked="does not hold the history, nor ingests it")
        return self._computing("local", engine, max(held.computed, held.submitted))

    def _replay(self, engine: EngineState) -> ContextTime:
        held = self._question.of(engine.name)
        if held.computed >= self._question.history_tokens:
            return ContextTime("replay", blocked="the history is there")
        return self._computing("replay", engine, max(held.computed, held.submitted))

    def _computing(self, path: str, engine: EngineState, start: float) -> ContextTime:
        """What was ordered before, then the rest of the history from ``start`` on."""
        own = self.prefill_s(engine, self._question.history_tokens - start, start)
        seconds = self._has_computed(engine, own)
        if engine.import_bytes and start > self._question.of(engine.name).computed:
            seconds += self._on_their_way_s(engine)
        return ContextTime(path, seconds, own)

    def _has_computed(self, engine: EngineState, missing_s: float) -> float:
        """When the engine has computed what was ordered, and ``missing_s`` more, some of which
        may not be encoded yet."""
        ordered = self.ingest_s(engine)
        seconds = self._beside_answers(engine, ordered + missing_s)
        if self._question.encoded_in_s > 0.0 and missing_s:
            encoded = self._question.encoded_in_s + self._beside_answers(engine, missing_s)
            return max(seconds, encoded)
        return seconds

    def _import(self, engine: EngineState) -> ContextTime:
        held, needed = self._question.of(engine.name), self._question.history_tokens
        start = max(held.computed, held.submitted)
        if start >= needed:
            return ContextTime("import", blocked="the history is there")
        found = [self._from_memory(engine, start)]
        found += [self._from(source, engine, start) for source in self._state.engines]
        possible = [way for way in found if way is not None]
        if not possible:
            return ContextTime("import", blocked="no engine has more of it that could be imported")
        return min(possible, key=lambda way: (way.seconds, way.computed_s))

    def _from_memory(self, engine: EngineState, start: int) -> ContextTime | None:
        cached = min(self._question.of(engine.name).cached, self._question.history_tokens)
        return self._imported(engine, start, cached, 0.0) if cached > start else None

    def _from(self, source: EngineState, engine: EngineState, start: int) -> ContextTime | None:
        if (source.name, engine.name) not in self._state.importable:
            return None
        question, held = self._question, self._question.of(source.name)
        ordered = max(held.computed, held.submitted)
        stop = question.history_tokens if source.name == self._ingest_engine else ordered
        if stop <= start:
            return None
        ready = 0.0
        if held.computed < stop:
            ready = self._has_computed(source, self.prefill_s(source, stop - ordered, ordered))
        moves, cost = ceil((stop - start) / RANGE_TOKENS), self._costs.engines[source.name].export
        n_bytes = (stop - start) * source.cell_bytes + source.export_bytes
        export = moves * cost.fixed_s + n_bytes * cost.byte_s
        export *= self._slowdown(source, Activity.EXPORT)
        ready += export + (moves - 0.5) * self._step_s(source)
        return self._imported(engine, start, stop, ready)

    def _imported(self, engine: EngineState, start: int, stop: int, ready_s: float) -> ContextTime:
        """From ``start`` to ``stop`` it is in host memory at ``ready_s``; what is missing beyond is
        computed."""
        moves, cost = ceil((stop - start) / RANGE_TOKENS), self._costs.engines[engine.name].import_
        n_bytes = (stop - start) * engine.cell_bytes + engine.import_bytes
        work = moves * cost.fixed_s + n_bytes * cost.byte_s
        work *= self._slowdown(engine, Activity.IMPORT)
        seconds = ready_s + work + (moves - 0.5) * self._step_s(engine)
        missing = self._question.history_tokens - stop
        if not missing:
            return ContextTime("import", seconds)
        own = self.prefill_s(engine, missing, stop)
        seconds = max(seconds, self._question.encoded_in_s) + self._beside_answers(engine, own)
        return ContextTime("import", seconds, own)

    # ---------------------------------------------------------------- parts
    def ingest_s(self, engine: EngineState) -> float:
        """Computing what was ordered, by itself."""
        if engine.name not in self._ingest:
            tokens, history = engine.ingest_tokens, engine.ingest_history_tokens
            self._ingest[engine.name] = self.prefill_s(engine, tokens, history)
        return self._ingest[engine.name]

    def prefill_s(self, engine: EngineState, tokens: float, history: float) -> float:
        if tokens <= 0:
            return 0.0
        seconds = self._costs.engines[engine.name].prefill_s(tokens, history, engine.chunk_tokens)
        return seconds * self._slowdown(engine, Activity.PREFILL)

    def _on_their_way_s(self, engine: EngineState) -> float:
        """Imports ordered before, some of which may still have to be exported."""
        costs, others = self._costs.engines, self._state.engines
        exports = [e.export_bytes * costs[e.name].export.byte_s for e in others if e is not engine]
        work = engine.import_bytes * costs[engine.name].import_.byte_s
        return max(exports, default=0.0) + work + 0.5 * self._step_s(engine)

    def _beside_answers(self, engine: EngineState, work_s: float) -> float:
        """What a question waits for takes turns with decode steps while answers run, a chunk for a
        step; it is done no later than after all of them."""
        if not engine.answers or not work_s:
            return work_s
        cost = self._costs.engines[engine.name].prefill
        chunk = cost.seconds(engine.chunk_tokens, self._question.history_tokens)
        chunk = min(work_s, chunk * self._slowdown(engine, Activity.PREFILL))
        turns = work_s * (chunk + self._decode_step_s(engine)) / chunk
        return min(turns, work_s + self._answering_s(engine))

    def _step_s(self, engine: EngineState) -> float:
        """What goes between two transfers while there is other work."""
        if engine.answers:
            step = self._decode_step_s(engine)
            return step / (1.0 - engine.ingest_share) if engine.ingest_tokens else step
        if engine.ingest_tokens:
            cost = self._costs.engines[engine.name].prefill
            chunk = min(engine.chunk_tokens, engine.ingest_tokens)
            return cost.seconds(chunk, engine.ingest_history_tokens)
        return 0.0

    def _slowdown(self, engine: EngineState, activity: Activity) -> float:
        return self._costs.slowdown(engine.name, activity, self._busy[engine.name])


def busy_with(state: PlanningState) -> dict[str, tuple[Busy, ...]]:
    """What is at work beside each engine: decoding counts before prefilling."""
    doing: list[Busy] = [(name, Activity.ENCODE) for name in state.encoders_busy]
    for engine in state.engines:
        if any(answer.ready_in_s <= 0.0 for answer in engine.answers):
            doing.append((engine.name, Activity.DECODE))
        elif engine.ingest_tokens:
            doing.append((engine.name, Activity.PREFILL))
    return {
        engine.name: tuple(other for other in doing if other[0] != engine.name)
        for engine in state.engines
    }
