"""Who decides: SDEP, and the simpler ways that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from .comparison import among_usable, compare, usable_ways
from .costs import CostModel
from .ingestion import ingest_engine
from .plan import Alternative, Objective, Plan
from .rebalancing import Move, RunningAnswer, best_move, may_help
from .sdep import Sdep
from .shares import EngineLoad, engine_load
from .state import EngineState, PlanningState, QuestionState
from .takeover import stream_to_take_over

POLICIES = ("sdep", "single:ENGINE", "batched:ENGINE", "idle_first", "isolated", "round_robin")


class Policy(Protocol):
    """Not thread-safe: one owner calls it."""

    @property
    def name(self) -> str: ...

    def plan(self, state: PlanningState, question: QuestionState, costs: CostModel) -> Plan | None:
        """Where a question is answered; None: it waits and is planned again when an engine has
        become free. ``state`` has at least one engine."""
        ...

    def ingest_engine(self, state: PlanningState, stream: str, costs: CostModel) -> str:
        """The engine that computes the frames of ``stream`` from now on."""
        ...

    def take_over(
        self,
        state: PlanningState,
        questions: Sequence[QuestionState],
        engine: str,
        costs: CostModel,
    ) -> str:
        """The stream whose frames ``engine``, which has computed its own, goes on with; empty:
        none. ``state`` is without the ``questions``, which no engine has begun."""
        ...

    @property
    def plans_again(self) -> bool:
        """Whether a question that had to wait for its history is planned anew when it is there."""
        ...

    def may_move(self, running: Mapping[str, int], costs: CostModel) -> bool:
        """Whether ``move`` is worth asking, with so many running answers on each engine."""
        ...

    def move(
        self, state: PlanningState, running: Sequence[RunningAnswer], costs: CostModel
    ) -> Move | None:
        """Which of the ``running`` answers is to go on on another engine, if any."""
        ...

    def load(self, state: PlanningState, costs: CostModel) -> EngineLoad:
        """How busy the engines are with what comes."""
        ...


class _Baseline:
    """Picks engines by a rule of its own; times are foreseen for the one choice only."""

    plans_again = False

    def __init__(self, name: str, objective: Objective) -> None:
        self.name = name
        self._objective: Objective = objective

    def load(self, state: PlanningState, costs: CostModel) -> EngineLoad:
        return engine_load(state, costs, sustained=False)

    def ingest_engine(self, state: PlanningState, stream: str, costs: CostModel) -> str:
        return _current_engine(state, stream)

    def take_over(
        self,
        state: PlanningState,
        questions: Sequence[QuestionState],
        engine: str,
        costs: CostModel,
    ) -> str:
        return ""

    def may_move(self, running: Mapping[str, int], costs: CostModel) -> bool:
        """No: they stay where they are."""
        return False

    def move(
        self, state: PlanningState, running: Sequence[RunningAnswer], costs: CostModel
    ) -> Move | None:
        return None

    def _on(
        self, engine: str, state: PlanningState, question: QuestionState, costs: CostModel, why: str
    ) -> Plan:
        """What the question asks for goes first; else all on ``engine``, if that is possible."""
        found = compare(state, question, costs, self._objective, engine)
        chosen = min(usable_ways(found), key=lambda a: a.score(self._objective))
        return Plan(self.name, chosen, tuple(found), why)


class Single(_Baseline):
    """One engine does everything, one answer at a time unless it is ``batched``."""

    def __init__(self, name: str, engine: str, batched: bool, objective: Objective) -> None:
        super().__init__(name, objective)
        self._engine = engine
        self._batched = batched

    def plan(self, state: PlanningState, question: QuestionState, costs: CostModel) -> Plan | None:
        own = self._usable(state).name
        name = among_usable(question, state).engine or own
        if not self._batched and state.engine(name).answers:
            return None
        return self._on(own, state, question, costs, f"everything is done by {name}")

    def ingest_engine(self, state: PlanningState, stream: str, costs: CostModel) -> str:
        return self._usable(state).name if state.engines else self._engine

    def _usable(self, state: PlanningState) -> EngineState:
        return next((e for e in state.engines if e.name == self._engine), state.engines[0])


class IdleFirst(_Baseline):
    """The first engine that has nothing to do, whatever it takes to get the history there."""

    def plan(self, state: PlanningState, question: QuestionState, costs: CostModel) -> Plan | None:
        wanted = among_usable(question, state).engine
        engine = next((e for e in state.engines if not e.answers), None)
        if engine is None and not wanted:
            return None
        name = wanted or (engine.name if engine else "")
        return self._on(name, state, question, costs, f"{name} has nothing to do")


class Isolated(_Baseline):
    """Each stream belongs to one engine; streams are dealt to the engines in turn."""

    def __init__(
        self, engines: Sequence[str], streams: Sequence[str], objective: Objective
    ) -> None:
        super().__init__("isolated", objective)
        self._engine_of = {
            stream: engines[index % len(engines)] for index, stream in enumerate(streams)
        }

    def plan(self, state: PlanningState, question: QuestionState, costs: CostModel) -> Plan | None:
        engine = self.ingest_engine(state, question.stream, costs)
        why = f"stream {question.stream} belongs to {engine}"
        return self._on(engine, state, question, costs, why)

    def ingest_engine(self, state: PlanningState, stream: str, costs: CostModel) -> str:
        own = self._engine_of[stream]
        names = [engine.name for engine in state.engines]
        return own if own in names or not names else names[0]


class RoundRobin(_Baseline):
    """Questions are dealt to the engines in turn."""

    def __init__(self, engines: Sequence[str], objective: Objective) -> None:
        super().__init__("round_robin", objective)
        self._order = list(engines)

    def plan(self, state: PlanningState, question: QuestionState, costs: CostModel) -> Plan | None:
        names = [engine.name for engine in state.engines]
        engine = next((name for name in self._order if name in names), names[0])
        if not among_usable(question, state).engine and engine in self._order:
            self._order.remove(engine)
            self._order.append(engine)
        return self._on(engine, state, question, costs, f"it is the turn of {engine}")


class SdepPolicy:
    """State-driven execution planning: see sdep.py, ingestion.py, takeover.py, rebalancing.py."""

    name = "sdep"
    plans_again = True

    def __init__(self, objective: Objective) -> None:
        self._sdep = Sdep(objective)

    def plan(self, state: PlanningState, question: QuestionState, costs: CostModel) -> Plan | None:
        return self._sdep.plan(state, question, costs)

    def ingest_engine(self, state: PlanningState, stream: str, costs: CostModel) -> str:
        return ingest_engine(state, stream, costs)

    def take_over(
        self,
        state: PlanningState,
        questions: Sequence[QuestionState],
        engine: str,
        costs: CostModel,
    ) -> str:
        def choose(then: PlanningState, question: QuestionState) -> Alternative:
            return self._sdep.best(then, question, costs)

        return stream_to_take_over(state, questions, engine, costs, choose)

    def may_move(self, running: Mapping[str, int], costs: CostModel) -> bool:
        return may_help(running, costs)

    def move(
        self, state: PlanningState, running: Sequence[RunningAnswer], costs: CostModel
    ) -> Move | None:
        return best_move(state, running, costs)

    def load(self, state: PlanningState, costs: CostModel) -> EngineLoad:
        return self._sdep.load(state, costs)


def make_policy(
    text: str, engines: Sequence[str], streams: Sequence[str], objective: Objective
) -> Policy:
    """The policy that a parameter's ``text`` names. Raises ValueError."""
    kind, _, engine = text.partition(":")
    if kind in ("single", "batched"):
        if engine not in engines:
            raise ValueError(
                f"policy {text!r}: there is no engine {engine!r}; there are: {', '.join(engines)}"
            )
        return Single(text, engine, kind == "batched", objective)
    simple: dict[str, Policy] = {
        "sdep": SdepPolicy(objective),
        "idle_first": IdleFirst("idle_first", objective),
        "isolated": Isolated(engines, streams, objective),
        "round_robin": RoundRobin(engines, objective),
    }
    if text not in simple:
        raise ValueError(f"there is no policy {text!r}; there are: {', '.join(POLICIES)}")
    return simple[text]


def _current_engine(state: PlanningState, stream: str) -> str:
    return next(s.ingest_engine for s in state.streams if s.name == stream)
