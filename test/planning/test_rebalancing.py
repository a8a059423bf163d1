"""Which running answer goes on elsewhere, worked out by hand, and what holds in any state.

USUAL: a decode step of B answers takes 10 + B ms; 70 tokens are prefilled in 9 ms, 1000 tokens
moved in 28 ms besides waiting for steps. SLOW: a step of one answer takes 30 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planning_situations import MOVE, SLOW, USUAL, costs, engine, question, running, state

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import CostModel, EngineCosts, RowCost, even_batches
from edge_vlm_ros.planning.policies import make_policy
from edge_vlm_ros.planning.rebalancing import (
    GAIN,
    Move,
    RunningAnswer,
    _ends,
    _timeline,
    best_move,
    may_help,
)
from edge_vlm_ros.planning.state import (
    AnswerLoad,
    EngineState,
    Held,
    PlanningState,
    StreamState,
)

TWO = costs(gpu=USUAL, cpu=USUAL)
MIXED = costs(gpu=USUAL, cpu=SLOW)
BOTH = {"gpu": 1000, "cpu": 1000}


def test_engines_that_make_tokens_no_sooner_are_not_looked_at() -> None:
    assert may_help({"gpu": 2, "cpu": 0}, TWO)
    assert not may_help({"gpu": 0, "cpu": 0}, TWO)
    assert not may_help({"gpu": 2, "cpu": 1}, TWO), "two on either are as fast"
    assert may_help({"gpu": 0, "cpu": 1}, MIXED)
    assert not may_help({"gpu": 4, "cpu": 0}, MIXED), "14 ms for all four, 30 ms for one"


def now(*engines: EngineState, **settings: Any) -> PlanningState:
    """Engines that compute alike."""
    names = [e.name for e in engines]
    return replace(state(*engines, **settings), equal=frozenset(permutations(names, 2)))


def answers(
    on: str, *tokens: float, held: Mapping[str, Held | int] | None = None, first_id: int = 1
) -> list[RunningAnswer]:
    """Answers that run on an engine, with so many tokens to go; 70 tokens are their own."""
    return [
        RunningAnswer(
            answer_id,
            on,
            question(BOTH if held is None else held, prompt_tokens=70, expected_tokens=n),
        )
        for answer_id, n in enumerate(tokens, first_id)
    ]


def chosen(move: Move | None) -> tuple[int, str] | None:
    return None if move is None else (move.answer_id, move.engine)


# -------------------------------------------------------------------------------- by hand
def test_an_idle_equal_engine_takes_one_of_four() -> None:
    # Four end after 400 x 14 ms: 4 x 5.6 s, and 5.6 s until the last. Three end after 5.2 s, the
    # one that moves after 9 ms of prefill and 399 x 11 ms: 4.4 s.
    four = [400.0] * 4
    move = best_move(
        now(engine("gpu", answers=running(*four)), engine("cpu")), answers("gpu", *four), TWO
    )
    assert move is not None and (move.answer_id, move.engine) == (1, "cpu")
    moved_s = 0.009 + 399 * 0.011
    assert move.gain_s == pytest.approx(5 * 5.6 - (3 * 5.2 + moved_s + 5.2))
    way = move.plan.chosen
    assert (way.path, way.prefill_engine, way.decode_engine) == ("local", "gpu", "cpu")
    assert way.finished_s == pytest.approx(moved_s)
    assert move.plan.alternatives == (way,) and "cpu" in move.plan.reason


def test_a_history_that_is_to_be_moved_first_makes_it_later() -> None:
    four = [400.0] * 4
    here = now(engine("gpu", answers=running(*four)), engine("cpu"))
    held, moved = (
        best_move(here, answers("gpu", *four, held=h), TWO) for h in (BOTH, {"gpu": 1000})
    )
    assert held is not None and moved is not None
    way = moved.plan.chosen
    # 4 ranges each way, 28 ms; every export but half of one waits for a step of 14 ms.
    assert (way.path, way.context_s) == ("import", pytest.approx(0.028 + 3.5 * 0.014))
    assert moved.gain_s == pytest.approx(held.gain_s - way.context_s, abs=0.002)


@pytest.mark.parametrize(("tokens", "moves"), [(2.0, False), (400.0, True)])
def test_what_is_about_done_stays(tokens: float, moves: bool) -> None:
    # 2 tokens of four are 28 ms each; of three 26 ms, and of one elsewhere 9 + 11 ms: 16 ms are
    # saved in sum, less than twice the 9 ms of moving and a tenth of 28 ms.
    four = [tokens] * 4
    here = now(engine("gpu", answers=running(*four)), engine("cpu"))
    assert (best_move(here, answers("gpu", *four), TWO) is not None) == moves


def test_a_slower_engine_that_would_end_it_later_is_left_idle() -> None:
    # 100 x 14 ms = 1.4 s here, 100 x 30 ms there.
    four = [100.0] * 4
    here = now(engine("gpu", answers=running(*four)), engine("cpu"))
    assert best_move(here, answers("gpu", *four), MIXED) is None


def test_a_slower_engine_takes_one_that_waits_for_its_turns() -> None:
    # In turns with three others 100 tokens take 4.4 s, and 3.0 s there.
    four = [100.0] * 4
    here = now(engine("gpu", batching=False, answers=running(*four)), engine("cpu"))
    assert chosen(best_move(here, answers("gpu", *four), MIXED)) == (1, "cpu")


def test_a_fast_idle_engine_takes_the_only_answer_of_a_slow_one() -> None:
    here = now(engine("cpu", answers=running(100.0)), engine("gpu"))
    move = best_move(here, answers("cpu", 100.0), MIXED)
    assert chosen(move) == (1, "gpu")
    assert move is not None
    assert move.gain_s == pytest.approx(2 * (3.0 - 0.009 - 99 * 0.011))


def test_a_busy_fast_engine_is_no_better() -> None:
    # In turns with two others that have as much to do 100 tokens take 3.3 s there.
    gpu = engine("gpu", batching=False, answers=running(80.0, 80.0))
    here = now(engine("cpu", answers=running(100.0)), gpu)
    assert best_move(here, answers("cpu", 100.0), MIXED) is None


def test_only_from_the_engine_that_is_done_last() -> None:
    here = now(
        engine("gpu", answers=running(400.0, 400.0)),
        engine("cpu", answers=running(100.0, 100.0)),
        engine("npu"),
    )
    model = costs(gpu=USUAL, cpu=USUAL, npu=USUAL)
    held = {**BOTH, "npu": 1000}
    both = answers("cpu", 100.0, 100.0, held=held) + answers(
        "gpu", 400.0, 400.0, held=held, first_id=7
    )
    assert chosen(best_move(here, both, model)) == (7, "npu")
    assert best_move(here, both[:2], model) is None


def test_the_longest_goes_unless_the_history_of_another_is_there() -> None:
    tokens = (200.0, 400.0, 300.0)
    here = now(engine("gpu", answers=running(*tokens)), engine("cpu"))
    assert chosen(best_move(here, answers("gpu", *tokens), TWO)) == (2, "cpu")
    nowhere_else = answers("gpu", *tokens, held={"gpu": 1000})
    assert chosen(best_move(here, nowhere_else, TWO)) == (2, "cpu")
    third = replace(nowhere_else[2], question=replace(nowhere_else[2].question, held=_held(BOTH)))
    assert chosen(best_move(here, [*nowhere_else[:2], third], TWO)) == (3, "cpu")


def _held(tokens: Mapping[str, int]) -> dict[str, Held]:
    return {name: Held(n, n) for name, n in tokens.items()}


FOUR = [400.0] * 4


def test_between_engines_that_do_not_compute_alike_nothing_moves() -> None:
    here = now(engine("gpu", answers=running(*FOUR)), engine("cpu"))
    for pairs in (frozenset(), frozenset({("cpu", "gpu")})):
        assert best_move(replace(here, equal=pairs), answers("gpu", *FOUR), TWO) is None
    there = replace(here, equal=frozenset({("gpu", "cpu")}))
    assert best_move(there, answers("gpu", *FOUR), TWO) is not None


def test_a_full_engine_takes_nothing() -> None:
    full = engine("cpu", max_parallel=1, answers=running(5.0))
    here = now(engine("gpu", answers=running(*FOUR)), full)
    assert best_move(here, answers("gpu", *FOUR), TWO) is None
    roomy = now(engine("gpu", answers=running(*FOUR)), replace(full, max_parallel=2))
    assert best_move(roomy, answers("gpu", *FOUR), TWO) is not None


@pytest.mark.parametrize(
    ("free", "held", "moves"),
    [
        (999, {"gpu": 1000}, False),
        (999, {"gpu": 1000, "cpu": Held(500, 500)}, False),
        (1000, {"gpu": 1000}, True),
        (900, {"gpu": 1000, "cpu": Held(0, 0, reserved=100)}, True),  # kept for others who see it
        (0, BOTH, True),  # it is there
    ],
)
def test_an_engine_without_cells_takes_what_it_holds_only(
    free: int, held: dict[str, Held | int], moves: bool
) -> None:
    here = now(engine("gpu", answers=running(*FOUR)), engine("cpu", free_cells=free))
    move = best_move(here, answers("gpu", *FOUR, held=held), TWO)
    assert (move is not None) == moves


@pytest.mark.parametrize(("factor", "moves"), [(1.0, True), (3.0, False)])
def test_engines_that_slow_each_other_down_share_nothing(factor: float, moves: bool) -> None:
    # At a third of their speed beside each other the one that moves ends after 13.2 s, the others
    # after 14 s, instead of 5.6 s.
    gpu, cpu = ("gpu", Activity.DECODE), ("cpu", Activity.DECODE)
    model = costs({(gpu, cpu): factor, (cpu, gpu): factor}, gpu=USUAL, cpu=USUAL)
    here = now(engine("gpu", answers=running(*FOUR)), engine("cpu"))
    assert (best_move(here, answers("gpu", *FOUR), model) is not None) == moves


@pytest.mark.parametrize("first", ["cpu", "npu"])
def test_the_engine_that_does_not_disturb_is_taken(first: str) -> None:
    gpu, cpu = ("gpu", Activity.DECODE), ("cpu", Activity.DECODE)
    model = costs({(gpu, cpu): 1.2, (cpu, gpu): 1.2}, gpu=USUAL, cpu=USUAL, npu=USUAL)
    second = "npu" if first == "cpu" else "cpu"
    here = now(engine("gpu", answers=running(*FOUR)), engine(first), engine(second))
    held = {**BOTH, "npu": 1000}
    assert chosen(best_move(here, answers("gpu", *FOUR, held=held), model)) == (1, "npu")


def test_engines_slow_each_other_down_only_while_both_work() -> None:
    # cpu: 1.1 s by itself, 2.2 s beside gpu, which has done 1.1 s of its 4.4 s by then.
    gpu, cpu = ("gpu", Activity.DECODE), ("cpu", Activity.DECODE)
    model = costs({(gpu, cpu): 2.0, (cpu, gpu): 2.0}, gpu=USUAL, cpu=USUAL)
    here = now(engine("gpu", answers=running(400.0)), engine("cpu", answers=running(100.0)))
    alone = {e.name: _timeline(e, model).without for e in here.engines}
    ends = _ends(alone, model)
    assert ends["cpu"].answered_s == pytest.approx(2.2)
    assert ends["gpu"].answered_s == pytest.approx(2.2 + 3.3)
    assert (ends["cpu"].pace, ends["gpu"].pace) == (pytest.approx(2.0), pytest.approx(1.25))
    assert ends["gpu"].total_s == pytest.approx(5.5)


def test_engines_that_are_done_at_the_same_time() -> None:
    here = now(*(engine(name, answers=running(100.0)) for name in ("gpu", "cpu")))
    ends = _ends({e.name: _timeline(e, TWO).without for e in here.engines}, TWO)
    assert [end.answered_s for end in ends.values()] == [pytest.approx(1.1)] * 2


def test_frames_to_be_ingested_keep_an_engine_from_helping() -> None:
    # 60,000 tokens are 6.9 s; at its share of a half the answer is twice as late: 8.8 s.
    here = now(engine("gpu", answers=running(*FOUR)), engine("cpu", ingest_tokens=60_000))
    assert best_move(here, answers("gpu", *FOUR), TWO) is None


def test_nothing_runs_or_there_is_nowhere_to_go() -> None:
    assert best_move(now(engine("gpu")), [], TWO) is None
    assert best_move(now(engine("gpu", answers=running(50.0))), answers("gpu", 50.0), TWO) is None
    assert best_move(now(engine("gpu"), engine("cpu")), [], TWO) is None
    assert best_move(PlanningState(()), [], TWO) is None


def test_only_sdep_moves_answers() -> None:
    here = now(engine("gpu", answers=running(*FOUR)), engine("cpu"))
    for text in ("sdep", "single:gpu", "batched:gpu", "idle_first", "isolated", "round_robin"):
        policy = make_policy(text, ("gpu", "cpu"), ("cam",), "completion")
        move = policy.move(here, answers("gpu", *FOUR), TWO)
        assert chosen(move) == ((1, "cpu") if text == "sdep" else None), text


# -------------------------------------------------------------------------------- in any state
_seconds = st.floats(1e-4, 0.05)
_costs = st.builds(
    EngineCosts,
    st.builds(RowCost, _seconds, st.floats(1e-5, 0.01), st.floats(0.0, 1e-5)),
    st.builds(even_batches, _seconds, _seconds, st.floats(0.0, 1e-5)),
    st.just(MOVE),
    st.just(MOVE),
)
_loads = st.builds(
    AnswerLoad,
    st.integers(1, 4000),
    st.sampled_from([0, 0, 0, 20]),
    st.floats(1.0, 400.0),
    st.sampled_from([0.0, 0.0, 0.3]),
)
Situation = tuple[PlanningState, list[RunningAnswer], CostModel]


@st.composite
def _situations(draw: st.DrawFn) -> Situation:
    names = ("a", "b", "c")[: draw(st.integers(1, 3))]
    engines = tuple(
        engine(
            name,
            max_parallel=draw(st.integers(1, 5)),
            batching=draw(st.booleans()),
            ingest_share=draw(st.floats(0.1, 0.9)),
            free_cells=draw(st.sampled_from([0, 1000, 100_000])),
            answers=tuple(draw(st.lists(_loads, max_size=5))),
            ingest_tokens=draw(st.sampled_from([0, 0, 50, 400])),
        )
        for name in names
    )
    found = []
    for each in engines:
        for load in each.answers:
            if load.prompt_tokens or load.ready_in_s or not draw(st.booleans()):
                continue
            history = load.history_tokens
            held = {
                name: Held(*draw(st.sampled_from([(0, 0, 0), (0, history), (history, history)])))
                for name in names
            }
            asked = question(
                held,
                history_tokens=history,
                prompt_tokens=draw(st.integers(1, 300)),
                expected_tokens=load.expected_tokens,
            )
            found.append(RunningAnswer(len(found), each.name, asked))
    pairs = list(permutations(names, 2))
    busy = st.floats(1.0, 3.0)
    slowdowns = {((a, Activity.DECODE), (b, Activity.DECODE)): draw(busy) for a, b in pairs}
    here = PlanningState(
        engines,
        (StreamState("cam", draw(st.sampled_from(names)), 0.5, 50, 1000),),
        importable=frozenset(pair for pair in pairs if draw(st.booleans())),
        equal=frozenset(pair for pair in pairs if draw(st.booleans())),
    )
    return here, found, CostModel({name: draw(_costs) for name in names}, {}, slowdowns)


@settings(max_examples=300, deadline=None)
@given(_situations())
def test_a_move_always_gains_and_is_possible(situation: Situation) -> None:
    here, found, model = situation
    move = best_move(*situation)
    if move is None:
        return
    (answer,) = [answer for answer in found if answer.answer_id == move.answer_id]
    target, way = here.engine(move.engine), move.plan.chosen
    assert (answer.engine, move.engine) in here.equal
    assert len(target.answers) < target.max_parallel
    held = answer.question.of(move.engine)
    assert held.computed >= answer.question.history_tokens or (
        target.free_cells + held.reserved >= answer.question.history_tokens
    )
    alone = {e.name: _timeline(e, model).without for e in here.engines}
    ends = _ends(alone, model)
    assert ends[answer.engine].answered_s == max(end.answered_s for end in ends.values())
    assert move.gain_s > GAIN * ends[answer.engine].answered_s > 0.0
    assert not way.blocked
    assert way.finished_s >= answer.question.expected_tokens * 1e-4


def _renamed(situation: Situation, names: Mapping[str, str]) -> Situation:
    """The same with other names, engines and answers in reverse order."""
    here, found, model = situation

    def pairs(of: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        return frozenset((names[a], names[b]) for a, b in of)

    return (
        replace(
            here,
            engines=tuple(replace(e, name=names[e.name]) for e in reversed(here.engines)),
            streams=tuple(replace(s, ingest_engine=names[s.ingest_engine]) for s in here.streams),
            importable=pairs(here.importable),
            equal=pairs(here.equal),
        ),
        [
            replace(
                answer,
                engine=names[answer.engine],
                question=replace(
                    answer.question,
                    held={names[name]: held for name, held in answer.question.held.items()},
                ),
            )
            for answer in reversed(found)
        ],
        replace(
            model,
            engines={names[name]: cost for name, cost in model.engines.items()},
            slowdowns={
                ((names[a], one), (names[b], other)): factor
                for ((a, one), (b, other)), factor in model.slowdowns.items()
            },
        ),
    )


def _are_apart(values: Sequence[float]) -> bool:
    return all(b - a > 1e-6 for a, b in pairwise(sorted(values)))


@settings(max_examples=200, deadline=None)
@given(_situations(), st.permutations(["x", "a", "m"]))
def test_names_and_order_do_not_matter(situation: Situation, others: list[str]) -> None:
    here, _, model = situation
    alone = {e.name: _timeline(e, model).without for e in here.engines}
    # Of engines that end at the same time either may be the last.
    assume(_are_apart([end.answered_s for end in _ends(alone, model).values() if end.answered_s]))
    names = dict(zip(("a", "b", "c"), others, strict=True))
    move, again = best_move(*situation), best_move(*_renamed(situation, names))
    if move is None or again is None:
        assert move is again
        return
    assert again.gain_s == pytest.approx(move.gain_s)
    idle = [e.name for e in here.engines if not e.answers]
    if len({model.engines[name] for name in idle}) == len(idle):  # else there are equal ones
        assert (again.answer_id, again.engine) == (move.answer_id, names[move.engine])
