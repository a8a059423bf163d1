"""State-driven execution planning: the path that is expected to finish first.

After "Shared Context, Separate Engines" (arXiv 2610.35309): paths are compared by predicted
completion time, and under sustained load each engine's part of the questions follows from arrival
rates and measured service times.
"""

from __future__ import annotations

from dataclasses import replace

from .comparison import NO_CELLS, Comparison
from .costs import CostModel
from .plan import Alternative, Objective, Plan
from .rates import TIME_CONSTANT_S
from .shares import EngineLoad, engine_load, question_rate
from .state import PlanningState, QuestionState

STAY = 0.05
"""What moves nothing is taken although something else is better by this part: predictions are not
that exact, and what is moved takes cells twice."""


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
        """None while the engine that would be best has no place for another answer and others
        exist: when it has, or another one has become better, the question is planned again."""
        found = Comparison(state, question, costs).alternatives()
        load = self.load(state, costs)
        if load.sustained:
            found = [_with_share(a, load, state) for a in found]
        chosen = self._choose(found)
        if len(state.engines) > 1 and not question.engine:
            decode = state.engine(chosen.decode_engine)
            if len(decode.answers) >= decode.max_parallel:
                return None
        return Plan("sdep", chosen, tuple(found), self._reason(chosen, found, state))

    def _choose(self, found: list[Alternative]) -> Alternative:
        open_ones = [a for a in found if not a.blocked]
        ways = open_ones or [a for a in found if a.blocked == NO_CELLS] or found
        best = min(ways, key=self._order)
        enough = best.score(self._objective) * (1.0 + STAY)
        staying = [a for a in ways if not a.is_handoff and a.path == "local"]
        staying = [a for a in staying if a.score(self._objective) <= enough]
        return min(staying, key=self._order, default=best)

    def _order(self, alternative: Alternative) -> tuple[float, ...]:
        """By values alone: names and the order of engines must not matter."""
        return (
            alternative.score(self._objective),
            float(alternative.is_handoff),
            ("local", "import", "replay").index(alternative.path),
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


def _with_share(alternative: Alternative, load: EngineLoad, state: PlanningState) -> Alternative:
    """Questions that the engine has had too many of, in seconds of its time."""
    name = alternative.decode_engine
    overdraft = max(0.0, state.engine(name).routed - load.shares.get(name, 0.0))
    questions = overdraft * question_rate(state) * TIME_CONSTANT_S
    return replace(alternative, share_s=questions * load.service_s[name])


def _words(alternative: Alternative) -> str:
    first, second = alternative.prefill_engine, alternative.decode_engine
    if alternative.is_handoff:
        return f"{alternative.path} on {first}, handed off to {second}"
    return f"{alternative.path} on {first}"
