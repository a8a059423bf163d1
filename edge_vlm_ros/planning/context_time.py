"""When an engine can have the history that a question needs, by each path."""

from __future__ import annotations

from collections.abc import Mapping
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

    - waiting until the newest frame is encoded;
    - ``local``: the ingestion ordered on the engine before it, and what was not ordered yet;
    - ``import``: until the source has computed its part, a step of the source in progress, the
      export, a step of the destination in progress, the import, computing what no source has;
      from host memory without the export;
    - ``replay``: the ingestion ordered before, and computing all that is missing.

    Computing beside running answers goes at the engine's ``ingest_share``.
    """

    def __init__(
        self,
        state: PlanningState,
        question: QuestionState,
        costs: CostModel,
        busy: Mapping[str, tuple[Busy, ...]],
    ) -> None:
        self._state = state
        self._question = question
        self._costs = costs
        self._busy = busy
        self._ingest_engine = next(
            (s.ingest_engine for s in state.streams if s.name == question.stream), ""
        )

    def all_paths(self, engine: EngineState) -> list[ContextTime]:
        """In the order of PATHS; only the one that the question asks for if it does."""
        times = {"local": self._local, "import": self._import, "replay": self._replay}
        held, path = self._question.of(engine.name), self._question.path
        if path and held.computed >= self._question.history_tokens:
            return [ContextTime(path, self._question.encoded_in_s)]  # nothing is left to be done
        return [times[path](engine) for path in PATHS if self._question.path in ("", path)]

    # ---------------------------------------------------------------- paths
    def _local(self, engine: EngineState) -> ContextTime:
        held, needed = self._question.of(engine.name), self._question.history_tokens
        if held.computed >= needed:
            return ContextTime("local", self._question.encoded_in_s)
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
        own = self._prefill_s(engine, self._question.history_tokens - start, start)
        ahead = self.ingest_s(engine)
        seconds = self._question.encoded_in_s + self._beside_answers(engine, ahead + own)
        return ContextTime(path, seconds, own)

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
        if cached <= start:
            return None
        return self._imported(engine, cached - start, cached, self._question.encoded_in_s)

    def _from(self, source: EngineState, engine: EngineState, start: int) -> ContextTime | None:
        if (source.name, engine.name) not in self._state.importable:
            return None
        question, held = self._question, self._question.of(source.name)
        ordered = max(held.computed, held.submitted)
        grows = source.name == self._ingest_engine
        stop = question.history_tokens if grows else ordered
        if stop <= start:
            return None
        ready = question.encoded_in_s
        if held.computed < stop:
            missing = self._prefill_s(source, stop - ordered, ordered)
            ready += self._beside_answers(source, self.ingest_s(source) + missing)
        n_bytes = (stop - start) * source.cell_bytes
        moves = ceil((stop - start) / RANGE_TOKENS)
        cost = self._costs.engines[source.name].export
        queued = source.export_bytes * cost.byte_s
        export = queued + moves * cost.fixed_s + n_bytes * cost.byte_s
        export *= self._slowdown(source, Activity.EXPORT)
        return self._imported(engine, stop - start, stop, ready + self._step_s(source) + export)

    def _imported(
        self, engine: EngineState, tokens: int, reached: int, ready_s: float
    ) -> ContextTime:
        """``tokens`` are in host memory at ``ready_s``; what is missing beyond is computed."""
        cost = self._costs.engines[engine.name].import_
        n_bytes = tokens * engine.cell_bytes + engine.import_bytes
        moves = ceil(tokens / RANGE_TOKENS)
        work = moves * cost.fixed_s + n_bytes * cost.byte_s
        work *= self._slowdown(engine, Activity.IMPORT)
        own = self._prefill_s(engine, self._question.history_tokens - reached, reached)
        seconds = ready_s + self._step_s(engine) + work + self._beside_answers(engine, own)
        return ContextTime("import", seconds, own)

    # ---------------------------------------------------------------- parts
    def ingest_s(self, engine: EngineState) -> float:
        """Computing what was ordered, by itself."""
        return self._prefill_s(engine, engine.ingest_tokens, engine.ingest_history_tokens)

    def _prefill_s(self, engine: EngineState, tokens: float, history: float) -> float:
        cost = self._costs.engines[engine.name]
        seconds = cost.prefill_s(tokens, history, engine.chunk_tokens)
        return seconds * self._slowdown(engine, Activity.PREFILL)

    def _beside_answers(self, engine: EngineState, work_s: float) -> float:
        running = any(answer.ready_in_s <= 0.0 for answer in engine.answers)
        return work_s / engine.ingest_share if running else work_s

    def _step_s(self, engine: EngineState) -> float:
        """What is left on average of the step that an engine is in: half of it."""
        costs = self._costs.engines[engine.name]
        running = min(len(engine.answers), engine.max_parallel)
        if running:
            history = sum(a.history_tokens for a in engine.answers[:running]) / running
            return 0.5 * costs.decode.seconds(running if engine.batching else 1, history)
        if engine.ingest_tokens:
            chunk = min(engine.chunk_tokens, engine.ingest_tokens)
            return 0.5 * costs.prefill.seconds(chunk, engine.ingest_history_tokens)
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
