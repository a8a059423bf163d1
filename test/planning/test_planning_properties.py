"""What holds for plans in any state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_situations import MOVE, SLOW, USUAL, costs, engine, question, running, state

from edge_vlm_ros.planning.comparison import Comparison
from edge_vlm_ros.planning.costs import BatchCost, CostModel, EngineCosts, RowCost, even_batches
from edge_vlm_ros.planning.plan import Alternative, Objective
from edge_vlm_ros.planning.sdep import QUEUED, STAY, Sdep
from edge_vlm_ros.planning.state import (
    AnswerLoad,
    Held,
    PlanningState,
    QuestionState,
    StreamState,
)

NAMES = ("a", "b", "c")
_seconds = st.floats(1e-4, 0.05)
_rows = st.builds(RowCost, _seconds, st.floats(1e-5, 0.01), st.floats(0.0, 1e-5))
# Uneven, but no larger batch takes less: then nothing would be a bound.
_batches = st.builds(
    lambda steps, history_s: BatchCost(tuple(enumerate(sorted(steps), 1)), history_s),
    st.lists(_seconds, min_size=1, max_size=6),
    st.floats(0.0, 1e-5),
)
_costs = st.builds(EngineCosts, _rows, _batches, st.just(MOVE), st.just(MOVE))
_answers = st.lists(
    st.builds(
        AnswerLoad,
        st.integers(0, 4000),
        st.sampled_from([0, 0, 20, 150]),
        st.floats(1.0, 200.0),
        st.sampled_from([0.0, 0.0, 0.3]),
    ),
    max_size=5,
).map(tuple)


@st.composite
def _situations(draw: st.DrawFn) -> tuple[PlanningState, QuestionState, CostModel]:
    names = NAMES[: draw(st.integers(1, 3))]
    history = draw(st.integers(1, 4000))
    engines = tuple(
        engine(
            name,
            max_parallel=draw(st.integers(1, 6)),
            batching=draw(st.booleans()),
            ingest_share=draw(st.floats(0.1, 0.9)),
            answers=draw(_answers),
            ingest_tokens=draw(st.sampled_from([0, 0, 50, 400])),
            ingest_history_tokens=draw(st.integers(0, 2000)),
        )
        for name in names
    )
    held = {}
    for name in names:
        computed = draw(st.sampled_from([0, history // 2, history]))
        submitted = draw(st.sampled_from([computed, history]))
        held[name] = Held(computed, submitted, draw(st.sampled_from([0, history])))
    pairs = [(a, b) for a in names for b in names if a != b]
    streams = (StreamState("cam", draw(st.sampled_from(names)), 0.5, 50, history),)
    importable = frozenset(pair for pair in pairs if draw(st.booleans()))
    asked = question(
        held,
        history_tokens=history,
        prompt_tokens=draw(st.integers(1, 200)),
        expected_tokens=draw(st.floats(1.0, 200.0)),
        encoded_in_s=draw(st.sampled_from([0.0, 0.5])),
    )
    model = CostModel({name: draw(_costs) for name in names})
    return PlanningState(engines, streams, importable), asked, model


def _least_s(way: Alternative, now: PlanningState, asked: QuestionState, model: CostModel) -> float:
    """Work that this one question needs if nothing else were to be done."""
    first = model.engines[way.prefill_engine]
    chunk = now.engine(way.prefill_engine).chunk_tokens
    return first.prefill_s(asked.prompt_tokens, asked.history_tokens, chunk)


@settings(max_examples=300, deadline=None)
@given(_situations())
def test_nothing_is_foreseen_faster_than_pure_work(
    situation: tuple[PlanningState, QuestionState, CostModel],
) -> None:
    now, asked, model = situation
    for way in Comparison(now, asked, model).alternatives():
        if way.blocked:
            continue
        decode = model.engines[way.decode_engine].decode.seconds(1, asked.history_tokens)
        steps = asked.expected_tokens - 1.0
        if way.is_handoff and (way.prefill_engine, way.decode_engine) not in now.importable:
            steps -= 1.0  # the second engine computes the prompt again, which gives it a token
        first = way.context_s + _least_s(way, now, asked, model)
        assert way.context_s >= 0.0
        assert way.first_token_s >= first - 1e-6, way
        assert way.finished_s >= first + steps * decode - 1e-6, way
        assert min(way.others_s, way.ingest_s, way.share_s) >= 0.0, way
        if way.path == "replay":
            held = asked.of(way.prefill_engine)
            start = max(held.computed, held.submitted)
            cost, chunk = (
                model.engines[way.prefill_engine],
                now.engine(way.prefill_engine).chunk_tokens,
            )
            own = cost.prefill_s(asked.history_tokens - start, start, chunk)
            assert way.context_s >= own - 1e-6, way


def test_a_long_answer_is_not_made_shorter_by_a_short_one_beside_it() -> None:
    """Decoded alone after the other has ended, behind all of its own history."""
    attentive = EngineCosts(USUAL.prefill, even_batches(0.010, 0.001, 1e-6), MOVE, MOVE)
    now = state(engine("gpu", answers=running(1, history=0)))
    asked = question({"gpu": 8000}, history_tokens=8000, expected_tokens=100.0)
    (way, *_) = Comparison(now, asked, costs(gpu=attentive)).alternatives()
    assert way.finished_s >= 0.003 + 99 * attentive.decode.seconds(1, 8000)


def _renamed(
    situation: tuple[PlanningState, QuestionState, CostModel], names: Mapping[str, str]
) -> tuple[PlanningState, QuestionState, CostModel]:
    """The same with other names, engines in reverse order."""
    now, asked, model = situation
    engines = tuple(replace(e, name=names[e.name]) for e in reversed(now.engines))
    streams = tuple(replace(s, ingest_engine=names[s.ingest_engine]) for s in now.streams)
    importable = frozenset((names[a], names[b]) for a, b in now.importable)
    return (
        replace(now, engines=engines, streams=streams, importable=importable),
        replace(asked, held={names[name]: held for name, held in asked.held.items()}),
        replace(model, engines={names[name]: cost for name, cost in model.engines.items()}),
    )


@settings(max_examples=200, deadline=None)
@given(
    _situations(), st.permutations(["x", "a", "m"]), st.sampled_from(["completion", "first_token"])
)
def test_names_and_order_of_engines_do_not_matter(
    situation: tuple[PlanningState, QuestionState, CostModel],
    others: list[str],
    objective: Objective,
) -> None:
    names = dict(zip(NAMES, others, strict=True))
    plan = Sdep(objective).plan(*situation)
    again = Sdep(objective).plan(*_renamed(situation, names))
    found = Comparison(*situation, objective).alternatives()
    scores = sorted(a.score(objective) for a in found if not a.blocked)
    if not all(b - a > 1e-6 for a, b in zip(scores, scores[1:], strict=False)):
        return  # of equals either may be taken
    if plan is None or again is None:
        assert plan is again
        return
    assert again.chosen.score(objective) == pytest.approx(plan.chosen.score(objective))
    chosen, same = plan.chosen, again.chosen
    expected = (chosen.path, names[chosen.prefill_engine], names[chosen.decode_engine])
    assert (same.path, same.prefill_engine, same.decode_engine) == expected


@settings(max_examples=200, deadline=None)
@given(_situations(), st.integers(0, 2))
def test_one_more_idle_engine_never_makes_it_worse(
    situation: tuple[PlanningState, QuestionState, CostModel], index: int
) -> None:
    now, asked, model = situation
    like = now.engines[index % len(now.engines)]
    spare = replace(like, name="spare", answers=(), ingest_tokens=0)
    pairs = {(e.name, "spare") for e in now.engines} | {("spare", e.name) for e in now.engines}
    more = replace(now, engines=(*now.engines, spare), importable=now.importable | pairs)
    more_costs = replace(model, engines={**model.engines, "spare": model.engines[like.name]})

    def best(state: PlanningState, model: CostModel, at_once: bool = False) -> float:
        found = [a for a in Comparison(state, asked, model).alternatives() if not a.blocked]
        full = {e.name for e in state.engines if len(e.answers) >= e.max_parallel}
        waiting = [a for a in found if at_once and a.is_handoff and a.decode_engine in full]
        return min((a.score("completion") for a in found if a not in waiting), default=math.inf)

    assert best(more, more_costs) <= best(now, model) + 1e-6
    plan = Sdep("completion").plan(more, asked, more_costs)
    before = best(now, model, at_once=True)  # nothing is handed off to a full engine
    if plan is not None and before < math.inf:
        assert plan.chosen.score("completion") <= (1.0 + STAY) * before + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=40), st.data())
def test_no_stream_starves(order: list[str], data: st.DataObject) -> None:
    """Questions come in any order; engines end their answers. Every question gets its place after
    no more ends than there were answers before it."""
    model = costs(gpu=USUAL, cpu=SLOW)
    home = {"one": "gpu", "two": "gpu", "three": "cpu"}
    streams = tuple(
        StreamState(name, home[name], 0.5, 50, 1000, question_rate_hz=2.0, prompt_tokens=20.0,
                    answer_tokens=50.0)
        for name in home
    )  # fmt: skip
    importable = frozenset({("gpu", "cpu"), ("cpu", "gpu")})
    sdep, waiting, answers = Sdep("completion"), list(order), {"gpu": 0, "cpu": 0}
    placed: list[str] = []
    for _ in range(2 * len(order) + 8):
        still = []
        for stream in waiting:
            engines = tuple(
                engine(name, max_parallel=2, answers=running(*[50.0] * answers[name]))
                for name in answers
            )
            asked = question({home[stream]: 1000}, stream=stream)
            plan = sdep.plan(PlanningState(engines, streams, importable), asked, model)
            if plan is None:
                still.append(stream)
                continue
            answers[plan.chosen.decode_engine] += 1
            assert answers[plan.chosen.decode_engine] <= 2 + QUEUED
            placed.append(stream)
        waiting = still
        if not waiting:
            break
        busy = [name for name, n in answers.items() if n]
        assert busy, "everything waits and nothing runs"
        answers[data.draw(st.sampled_from(busy))] -= 1
    assert sorted(placed) == sorted(order)
