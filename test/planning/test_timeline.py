"""How an engine's work unfolds, worked out by hand.

USUAL: a decode step of B answers takes 10 + B ms; 20 tokens are prefilled in 3 ms, 128 in 14.8 ms.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_situations import MOVE, USUAL, engine, running

from edge_vlm_ros.planning.costs import EngineCosts, RowCost, even_batches
from edge_vlm_ros.planning.state import AnswerLoad
from edge_vlm_ros.planning.timeline import EngineTimeline, Pace, Unfolded, unfold

ATTENTIVE = EngineCosts(USUAL.prefill, even_batches(0.010, 0.001, 1e-6), MOVE, MOVE)
AT_EASE = Pace()
FREE = EngineCosts(RowCost(0.0, 0.0, 0.0), even_batches(0.0, 0.0, 0.0), MOVE, MOVE)


def new(tokens: float, prompt: int = 20, ready_s: float = 0.0, history: int = 0) -> AnswerLoad:
    return AnswerLoad(history, prompt, tokens, ready_s)


def unfolded(
    answer: AnswerLoad | None,
    *others: AnswerLoad,
    ingest_s: float = 0.0,
    pace: Pace = AT_EASE,
    costs: EngineCosts = USUAL,
    **changes: Any,
) -> Unfolded:
    return unfold(engine("gpu", answers=others, **changes), costs, pace, ingest_s, answer)


def test_alone() -> None:
    after = unfolded(new(50.0))
    assert after.first_token_s == pytest.approx(0.003)
    assert after.finished_s == pytest.approx(0.003 + 49 * 0.011)
    assert after.answering_s == after.answered_s == after.finished_s


def test_an_answer_of_one_token_ends_with_its_prefill() -> None:
    after = unfolded(new(1.0, prompt=128))
    assert after.first_token_s == after.finished_s == pytest.approx(2 * 0.001 + 128 * 0.0001)


def test_a_batch_shares_its_steps_until_the_shorter_has_ended() -> None:
    # 10 steps of two (12 ms), then 20 of one (11 ms).
    after = unfolded(new(30.0, prompt=0), *running(10))
    assert after.others_s == pytest.approx(10 * 0.012)
    assert after.finished_s == pytest.approx(10 * 0.012 + 20 * 0.011)


def test_without_batching_answers_take_turns() -> None:
    # 10 tokens each in turns: 20 steps of 11 ms; then 20 more of the longer.
    after = unfolded(new(30.0, prompt=0), *running(10), batching=False)
    assert after.others_s == pytest.approx(20 * 0.011)
    assert after.finished_s == pytest.approx(40 * 0.011)


def test_each_answer_costs_what_its_own_history_does() -> None:
    # Together 10 + 2 x 1 + 1 ms a step; alone behind its own 1000 tokens 10 + 1 + 1 ms.
    other = AnswerLoad(0, 0, 10.0)
    after = unfolded(new(30.0, prompt=0, history=1000), other, costs=ATTENTIVE)
    assert after.finished_s == pytest.approx(10 * 0.013 + 20 * 0.012)


def test_chunks_of_a_prefill_alternate_with_decode_steps() -> None:
    # Two chunks of 7.4 ms and two steps of 11 ms: the other has two tokens less to go then.
    after = unfolded(new(2.0, prompt=128), *running(100))
    assert after.first_token_s == pytest.approx(2 * 0.0074 + 2 * 0.011)
    assert after.finished_s == pytest.approx(after.first_token_s + 0.012)


def test_questions_are_prefilled_one_after_the_other() -> None:
    first = AnswerLoad(0, 20, 1.0)
    after = unfolded(new(1.0), first)
    assert (after.others_first_s, after.first_token_s) == (
        pytest.approx(0.003),
        pytest.approx(0.006),
    )


def test_a_full_engine_is_waited_for() -> None:
    # Two places: the first of them is free after 5 steps of two.
    after = unfolded(new(1.0), *running(5, 50), max_parallel=2)
    assert after.first_token_s == pytest.approx(5 * 0.012 + 0.003 + 0.011)


def test_answers_leave_ingestion_its_share() -> None:
    # Half of the time each: 60 ms of ingestion end after 120 ms; 60 ms of answering are done then.
    after = unfolded(new(100.0, prompt=0), ingest_s=0.060, ingest_share=0.5)
    assert after.ingested_s == pytest.approx(0.120)
    assert after.finished_s == pytest.approx(0.060 + 100 * 0.011)
    # With a quarter of the time the answer ends first: it takes 110 ms of 4/3 times as many.
    after = unfolded(new(10.0, prompt=0), ingest_s=0.060, ingest_share=0.25)
    assert after.finished_s == pytest.approx(0.110 * 4 / 3)
    assert after.ingested_s == pytest.approx(0.170)
    assert after.answering_s == pytest.approx(0.110)


def test_what_is_not_ready_is_not_waited_for_by_others() -> None:
    late = AnswerLoad(0, 20, 2.0, ready_in_s=1.0)
    after = unfolded(new(50.0), late, max_parallel=1)
    assert after.finished_s == pytest.approx(0.003 + 49 * 0.011)
    assert after.others_s == pytest.approx(1.0 + 0.003 + 0.011)
    assert unfolded(new(1.0, ready_s=2.0)).first_token_s == pytest.approx(2.003)


def test_slowdowns_count_for_each_kind_of_step() -> None:
    after = unfolded(new(11.0), pace=Pace(2.0, 3.0))
    assert after.first_token_s == pytest.approx(0.006)
    assert after.finished_s == pytest.approx(0.006 + 10 * 0.033)


def test_nothing_to_do_takes_no_time() -> None:
    assert unfolded(None) == Unfolded(0.0, 0.0, 0.0, 0.0)
    assert unfolded(None, ingest_s=0.5).ingested_s == 0.5


_loads = st.builds(
    AnswerLoad,
    st.integers(0, 100_000),
    st.sampled_from([0, 0, 1, 64, 65, 5000]),
    st.floats(0.0, 1e6) | st.sampled_from([1.0, 1.0000001, 7.0]),
    st.sampled_from([0.0, 0.0, 1e-9, 0.3, 1e9]) | st.floats(0.0, 1e9),
)
_parts = st.one_of(st.just(0.0), st.floats(0.0, 1.0))
_costs = st.builds(
    lambda *rows: EngineCosts(RowCost(*rows[:3]), even_batches(*rows[3:]), MOVE, MOVE),
    *[_parts] * 6,
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(_loads, max_size=12),
    _loads,
    _costs | st.just(FREE),
    st.floats(0.0, 1e6),
    st.floats(1e-6, 1 - 1e-6),
    st.integers(1, 5),
    st.booleans(),
)
def test_it_comes_to_an_end_and_agrees_with_itself(
    others: list[AnswerLoad],
    asked: AnswerLoad,
    costs: EngineCosts,
    ingest_s: float,
    share: float,
    places: int,
    batching: bool,
) -> None:
    now = engine(
        "gpu",
        answers=tuple(others),
        ingest_share=share,
        max_parallel=places,
        batching=batching,
    )
    timeline = EngineTimeline(now, costs, Pace(), ingest_s)
    before, after = timeline.without, timeline.with_answer(asked)
    for end in (before, after):
        last = max(end.answered_s, end.ingested_s)
        assert 0.0 <= end.answering_s <= end.answered_s * (1 + 1e-9) + 1e-6
        assert end.others_s <= len(others) * last * (1 + 1e-9)
        work = end.answering_s + ingest_s
        assert last >= work * (1 - 1e-6) - 1e-6  # nothing is done for nothing
    assert after.finished_s >= asked.ready_in_s * (1 - 1e-9)
    assert after.first_token_s <= after.finished_s
    # What was unfolded once for all is what comes out without it.
    again = EngineTimeline(now, costs, Pace(), ingest_s).with_answer(asked)
    assert again == after == timeline.with_answer(asked)
