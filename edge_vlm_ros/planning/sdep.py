"""State-driven execution planning: the path that is expected to finish first.

After "Shared Context, Separate Engines" (arXiv 2610.35309): paths are compared by predicted
completion time, and under sustained load each engine's part of the questions follows from arrival
rates and measured service times.
"""

from __future__ import annotations

from .comparison import among_usable, compare, usable_ways
from .costs import CostModel
from .plan import PATHS, Alternative, Objective, Plan
from .rates import TIME_CONSTANT_S
from .shares import EngineLoad, engine_load, question_rate
from .state import PlanningState, QuestionState

STAY = 0.05
"""What moves nothing is taken although something else is better by this part, else what hands
nothing off: predictions are not that exact, and what is moved takes cells twice."""

QUEUED = 2
"""Questions that wait on a full engine itself, for the next answers that end there: without, each
end is followed by a step with one answer less. Those behind them are placed as late as can be."""


class Sdep:
    """Keeps whether load is sustained; all else comes with the arguments."""

    def __init__(self, objective: Objective) -> None:
        self._objective: Objective = objective
        self._sustained = False

    def load(self, state: PlanningState, costs: CostModel) -> EngineLoad:
        load = engine_load(state, costs, self._sustained)
        self._sustained = load.sustained
        return load

    def plan(self, state: PlanningState, question: QuestionState, costs: CostModel) -> Plan | None:
        """None while an engine that would be best has answers enough to do and others exist: when
        it has fewer, or another one has become better, the question is planned again. An engine
        with so many answers ends one of them."""
        question = among_usable(question, state)
        load = self.load(state, costs)
        share_s = share_penalties(state, load) if load.sustained else None
        found = compare(state, question, costs, self._objective, share_s=share_s)
        chosen = self._choose(found, state)
        if len(state.engines) > 1 and not question.engine:
            for name in {chosen.prefill_engine, chosen.decode_engine}:
                if _is_full(state, name, QUEUED):
                    return None
        return Plan("sdep", chosen, tuple(found), self._reason(chosen, found, state))

    def best(self, state: PlanningState, question: QuestionState, costs: CostModel) -> Alternative:
        """What would be chosen if shares did not matter."""
        found = compare(state, among_usable(question, state), costs, self._objective)
        return self._choose(found, state)

    def _choose(self, found: list[Alternative], state: PlanningState) -> Alternative:
        usable = usable_ways(found)
        # What is to be handed off to a full engine would wait for it before it begins.
        at_once = [a for a in usable if not (a.is_handoff and _is_full(state, a.decode_engine))]
        ways = at_once or usable
        scores = [a.score(self._objective) for a in ways]
        enough = min(scores) * (1.0 + STAY)
        near = [a for a, score in zip(ways, scores, strict=True) if score <= enough]
        simple = [a for a in near if not a.is_handoff]
        staying = [a for a in simple if a.path == "local"]
        return min(
            staying or simple or near,
            key=lambda way: (
                self._order(way)[0],
                _is_full(state, way.decode_engine),
                self._order(way),
            ),
        )

    def _order(self, alternative: Alternative) -> tuple[float, ...]:
        """By values alone: names and the order of engines must not matter."""
        return (
            alternative.score(self._objective),
            float(alternative.is_handoff),
            PATHS.index(alternative.path),
            alternative.finished_s,
            alternative.context_s,
        )

    def _reason(self, chosen: Alternative, found: list[Alternative], state: PlanningState) -> str:
        text = f"{_words(chosen)}: {self._time(chosen):.2f} s"
        others = [
            a for a in found
            if not a.blocked
            and (a.prefill_engine, a.decode_engine) != (chosen.prefill_engine, chosen.decode_engine)
        ]  # fmt: skip
        if not others:
            return f"{text}; nothing else is possible"
        second = min(others, key=self._order)
        ahead = len(state.engine(second.decode_engine).answers)
        reasons = [f"{ahead} answers there"] if ahead else []
        if second.others_s >= 0.01:
            reasons.append(f"others {second.others_s:.2f} s later")
        why = f" ({', '.join(reasons)})" if reasons else ""
        return f"{text}; {_words(second)} would take {self._time(second):.2f} s{why}"

    def _time(self, alternative: Alternative) -> float:
        if self._objective == "completion":
            return alternative.finished_s
        return alternative.first_token_s


def share_penalties(state: PlanningState, load: EngineLoad) -> dict[str, float]:
    """By engine, up to its time for one question, in proportion to how far the questions that it
    has had lately are beyond its share: more would let a noisy count outweigh real queues."""
    recent = question_rate(state) * TIME_CONSTANT_S
    return {
        engine.name: load.service_s[engine.name]
        * min(1.0, recent * max(0.0, engine.routed - load.shares[engine.name]))
        for engine in state.engines
    }


def _is_full(state: PlanningState, name: str, queued: int = 0) -> bool:
    engine = state.engine(name)
    return len(engine.answers) >= engine.max_parallel + queued


def _words(alternative: Alternative) -> str:
    first, second = alternative.prefill_engine, alternative.decode_engine
    if alternative.is_handoff:
        return f"{alternative.path} on {first}, handed off to {second}"
    return f"{alternative.path} on {first}"
