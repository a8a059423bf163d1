"""Shares of the engines under load that lasts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_situations import SLOW, USUAL, costs, engine, state

from edge_vlm_ros.planning.shares import (
    SUSTAINED_ABOVE,
    SUSTAINED_BELOW,
    engine_load,
    square_root_shares,
)

_capacities = st.dictionaries(
    st.sampled_from("abcd"), st.floats(0.05, 20.0), min_size=1, max_size=4
)
TWO = costs(gpu=USUAL, cpu=SLOW)


def _mean_time(rate: float, capacity: dict[str, float], shares: dict[str, float]) -> float:
    """Mean time of a question in engines with processor sharing; infinite when one is too slow."""
    total = 0.0
    for name, mu in capacity.items():
        given_rate = rate * shares[name]
        if given_rate >= mu:
            return float("inf")
        total += shares[name] / (mu - given_rate)
    return total


def test_the_square_root_rule_worked_out() -> None:
    # mu 4 and 1, rate 3: spare (5 - 3) / (2 + 1) = 2/3; x = 4 - 2 * 2/3 = 8/3 and 1 - 2/3 = 1/3.
    shares = square_root_shares(3.0, {"gpu": 4.0, "cpu": 1.0})
    assert shares == {"gpu": pytest.approx(8 / 9), "cpu": pytest.approx(1 / 9)}
    # The slow one is worth it from sqrt(mu) * (5 - rate) / 3 <= 1 on: rate 2.
    assert square_root_shares(1.9, {"gpu": 4.0, "cpu": 1.0})["cpu"] == 0.0
    assert square_root_shares(2.1, {"gpu": 4.0, "cpu": 1.0})["cpu"] > 0.0


@given(_capacities, st.floats(0.0, 1.5))
def test_shares_are_fractions_of_all(capacity: dict[str, float], load: float) -> None:
    shares = square_root_shares(load * sum(capacity.values()), capacity)
    assert set(shares) == set(capacity)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= 0.0
    for slow in capacity:
        for fast in capacity:
            if capacity[slow] < capacity[fast]:
                assert shares[slow] <= shares[fast] + 1e-9


@given(_capacities, st.floats(0.05, 0.95))
def test_no_other_split_is_faster(capacity: dict[str, float], load: float) -> None:
    rate = load * sum(capacity.values())
    shares = square_root_shares(rate, capacity)
    best = _mean_time(rate, capacity, shares)
    names = list(capacity)
    for first in names:
        for second in names:
            moved = min(0.01, shares[first])
            other = {**shares, first: shares[first] - moved}
            other[second] += moved
            assert _mean_time(rate, capacity, other) >= best - 1e-9 * best


@given(_capacities, st.floats(0.05, 0.9))
def test_with_more_load_slower_engines_get_more(capacity: dict[str, float], load: float) -> None:
    total = sum(capacity.values())
    slowest = min(capacity, key=lambda name: capacity[name])
    less = square_root_shares(load * total, capacity)[slowest]
    more = square_root_shares(1.1 * load * total, capacity)[slowest]
    assert more >= less - 1e-9


def test_equal_engines_share_equally() -> None:
    assert square_root_shares(0.1, {"a": 2.0, "b": 2.0}) == {"a": 0.5, "b": 0.5}
    assert square_root_shares(9.0, {"a": 2.0, "b": 2.0}) == {"a": 0.5, "b": 0.5}


def test_no_questions_all_go_to_the_fastest() -> None:
    assert square_root_shares(0.0, {"a": 2.0, "b": 3.0}) == {"a": 0.0, "b": 1.0}


def _load(rate: float, sustained: bool = False, **stream: float) -> object:
    now = state(
        engine("gpu"), engine("cpu"), question_rate_hz=rate, prompt_tokens=20.0,
        answer_tokens=50.0, **stream,
    )  # fmt: skip
    return engine_load(now, TWO, sustained)


def test_service_time_is_that_of_a_full_batch() -> None:
    load = engine_load(
        state(engine("gpu"), question_rate_hz=1.0, prompt_tokens=20.0, answer_tokens=50.0),
        TWO,
        False,
    )
    # 3 ms of prefill, and a quarter of 49 steps of 14 ms.
    assert load.service_s["gpu"] == pytest.approx(0.003 + 49 * 0.014 / 4)
    assert load.utilisation["gpu"] == pytest.approx(load.service_s["gpu"])
    turns = engine("gpu", batching=False)
    load = engine_load(
        state(turns, question_rate_hz=1.0, prompt_tokens=20.0, answer_tokens=50.0), TWO, False
    )
    assert load.service_s["gpu"] == pytest.approx(0.003 + 49 * 0.011)


def test_sustained_load_has_hysteresis() -> None:
    capacity = 1.0 / (0.003 + 49 * 0.014 / 4)
    between = capacity * (SUSTAINED_ABOVE + SUSTAINED_BELOW) / 2
    for rate, before, after in (
        (1.05 * SUSTAINED_ABOVE * capacity, False, True),
        (between, False, False),
        (between, True, True),
        (0.95 * SUSTAINED_BELOW * capacity, True, False),
    ):
        assert _load(rate, before).sustained is after  # type: ignore[attr-defined]


def test_ingestion_takes_capacity_away() -> None:
    # 51 frames of 50 tokens a second at 6 ms each are 31 % of the engine.
    free, busy = _load(3.0), _load(3.0, frame_rate_hz=51.0)
    assert busy.shares["gpu"] < free.shares["gpu"]  # type: ignore[attr-defined]
    assert busy.utilisation["gpu"] > 0.3  # type: ignore[attr-defined]


def test_nothing_is_said_before_there_are_questions() -> None:
    load = engine_load(state(engine("gpu")), TWO, True)
    assert (load.sustained, load.shares) == (False, {})
