"""Time of one decision of SDEP over numbers of engines and of answers under way.

Times are those of the thread, so that other work of the machine does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import (
    ENCODER,
    CostModel,
    EngineCosts,
    MoveCost,
    RowCost,
    even_batches,
)
from edge_vlm_ros.planning.policies import make_policy
from edge_vlm_ros.planning.state import (
    AnswerLoad,
    EngineState,
    Held,
    PlanningState,
    QuestionState,
    StreamState,
)
from edge_vlm_ros.planning.takeover import MOST_QUESTIONS

from .planning_coordinator import measure_decisions

STREAMS = 8
ENGINES = (1, 2, 4)
QUEUED = (0, 8, 64)
HISTORY = 1000
HEADER = """\
| engines | answers under way | places | alternatives | decision | median us | p99 us |
|---|---|---|---|---|---|---|"""

_MOVE = MoveCost(4e-4, 4e-10)


@dataclass(frozen=True)
class DecisionTime:
    """``places``: whether an engine has a place left for the question."""

    engines: int
    queued: int
    places: bool
    alternatives: int
    """0 when the question is told to wait."""
    microseconds: tuple[float, ...]

    def row(self) -> str:
        ordered = sorted(self.microseconds)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        decision = f"of {self.alternatives}" if self.alternatives else "wait"
        return (
            f"| {self.engines} | {self.queued} | {'free' if self.places else 'full'} "
            f"| {self.alternatives or '-'} | {decision} "
            f"| {statistics.median(ordered):.0f} | {p99:.0f} |"
        )


WHOLE_HEADER = """\
| engines | answers under way | median us | p99 us |
|---|---|---|---|"""


def whole_rows(rounds: int) -> Iterator[str]:
    """The coordinator's whole decision: gathering the state, planning, keeping the plan."""
    for engines in ENGINES:
        for queued in QUEUED:
            times = sorted(measure_decisions(engines, queued, rounds))
            p99 = times[int(0.99 * len(times))]
            yield f"| {engines} | {queued} | {statistics.median(times):.0f} | {p99:.0f} |"


TAKE_OVER_HEADER = """\
| engines | taken over | median us | p99 us |
|---|---|---|---|"""


def take_over_rows(rounds: int) -> Iterator[str]:
    """Whether an engine that is done should go on with another stream's frames, with as many
    questions waiting as are looked at, beside eight answers."""
    for engines in ENGINES[1:]:
        names = tuple(f"engine{i}" for i in range(engines))
        state, question, costs = _situation(names, 8, True)
        behind = replace(state.streams[1], ordered_tokens=HISTORY, held={})
        streams = (state.streams[0], behind, *state.streams[2:])
        state = replace(state, streams=streams)
        asked = replace(question, stream=behind.name, held={names[1]: Held(0, HISTORY)})
        questions = [asked] * MOST_QUESTIONS
        policy = make_policy("sdep", names, [s.name for s in streams], "completion")
        times, taken = [], ""
        for _ in range(rounds):
            began = time.thread_time()
            taken = policy.take_over(state, questions, names[0], costs)
            times.append(1e6 * (time.thread_time() - began))
        times.sort()
        p99 = times[int(0.99 * len(times))]
        yield f"| {engines} | {taken or '-'} | {statistics.median(times):.0f} | {p99:.0f} |"


def measure_planning(rounds: int) -> list[DecisionTime]:
    """Every size, with a place for the question and (where answers could fill them) without."""
    cases = [(e, q, True) for e in ENGINES for q in QUEUED]
    cases += [(e, q, False) for e in ENGINES for q in QUEUED if q >= e]
    return [_measure(engines, queued, places, rounds) for engines, queued, places in cases]


def _measure(engines: int, queued: int, places: bool, rounds: int) -> DecisionTime:
    names = tuple(f"engine{i}" for i in range(engines))
    state, question, costs = _situation(names, queued, places)
    policy = make_policy("sdep", names, [s.name for s in state.streams], "completion")
    plan = policy.plan(state, question, costs)
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        policy.plan(state, question, costs)
        times.append(1e6 * (time.thread_time() - began))
    return DecisionTime(
        engines, queued, places, 0 if plan is None else len(plan.alternatives), tuple(times)
    )


def _situation(
    names: tuple[str, ...], queued: int, places: bool
) -> tuple[PlanningState, QuestionState, CostModel]:
    """Engines of different speeds that slow each other down, half of them with frames to compute,
    and load that lasts: nothing of what a decision may need is left out."""
    each = [len(range(i, queued, len(names))) for i in range(len(names))]
    room = max(each) + 1 if places else max(1, min(each))
    engines = tuple(
        EngineState(
            name, room, 64, 0.3, True, 6000, 50_000, 50_000,
            answers=tuple(
                AnswerLoad(100 + 131 * k % 1400, 20 * (k % 3 == 0), 5.0 + 37 * k % 120)
                for k in range(each[i])
            ),
            ingest_tokens=100 * (i % 2),
            ingest_history_tokens=HISTORY // 2,
            routed=1.0 / len(names),
        )
        for i, name in enumerate(names)
    )  # fmt: skip
    streams = tuple(
        StreamState(
            f"stream{i}", names[i % len(names)], 1.0, 51, HISTORY,
            held={names[i % len(names)]: HISTORY},
            question_rate_hz=0.5, prompt_tokens=20.0, answer_tokens=60.0,
        )
        for i in range(STREAMS)
    )  # fmt: skip
    pairs = frozenset((a, b) for a in names for b in names if a != b)
    question = QuestionState("stream0", HISTORY, 20, 60.0, held={names[0]: Held(HISTORY, HISTORY)})
    return PlanningState(engines, streams, pairs, (ENCODER,)), question, _costs(names)


def _costs(names: tuple[str, ...]) -> CostModel:
    slowdowns = {
        ((who, activity), (beside, other)): 1.1
        for who in names
        for beside in (*names, ENCODER)
        if who != beside
        for activity in (Activity.PREFILL, Activity.DECODE)
        for other in (Activity.PREFILL, Activity.DECODE, Activity.ENCODE)
    }
    engines = {
        name: EngineCosts(
            RowCost(2e-3 * speed, 4e-4 * speed, 1e-7 * speed),
            even_batches(1e-2 * speed, 1.5e-3 * speed, 1e-6 * speed),
            _MOVE,
            _MOVE,
        )
        for speed, name in enumerate(names, start=1)
    }
    return CostModel(engines, {ENCODER: 0.03}, slowdowns)
