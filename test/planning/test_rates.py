"""How often something has happened lately."""

from __future__ import annotations

import math

import pytest

from edge_vlm_ros.planning.rates import SHORTEST_S, EventRate, Fractions


@pytest.mark.parametrize("rate_hz", [0.1, 1.0, 25.0])
def test_regular_events_are_estimated_right_from_the_beginning(rate_hz: float) -> None:
    rate = EventRate(time_constant_s=30.0)
    for k in range(200):
        now = 100.0 + k / rate_hz
        rate.add(now)
        if k >= 5 and now - 100.0 >= SHORTEST_S:
            assert rate.value(now) == pytest.approx(rate_hz, rel=0.2), k


def test_a_fraction_can_be_corrected() -> None:
    fractions, right = Fractions(), Fractions()
    for now, kind in ((0.0, "a"), (3.0, "a"), (10.0, "b")):
        fractions.add(kind, now)
        right.add("b" if now == 3.0 else kind, now)
    fractions.correct("a", "b", 3.0, 20.0)
    assert fractions.of("a") == pytest.approx(right.of("a"))
    assert fractions.of("b") == pytest.approx(right.of("b"))


def test_it_falls_when_nothing_happens_and_follows_a_change() -> None:
    rate = EventRate(time_constant_s=10.0)
    for k in range(100):
        rate.add(k * 0.1)
    assert rate.value(9.9) == pytest.approx(10.0, rel=0.1)
    assert rate.value(19.9) < 5.0 and rate.value(109.9) < 0.01
    for k in range(100):
        rate.add(110.0 + k)
    assert rate.value(209.0) == pytest.approx(1.0, rel=0.1)


def test_one_event_is_no_rate() -> None:
    rate = EventRate()
    assert rate.value(5.0) == 0.0
    rate.add(1.0)
    assert rate.value(1.0) == rate.value(5.0) == 0.0


def test_fractions_of_what_happened_lately() -> None:
    fractions = Fractions(time_constant_s=10.0)
    assert fractions.of("gpu") == 0.0
    fractions.add("gpu", 5.0)
    assert (fractions.of("gpu"), fractions.of("cpu")) == (1.0, 0.0)
    fractions.add("cpu", 5.0)
    assert fractions.of("gpu") == fractions.of("cpu") == 0.5
    # Ten seconds later both of these count 1/e: (1/e) / (2/e + 1).
    fractions.add("cpu", 15.0)
    assert fractions.of("gpu") == pytest.approx(1.0 / (2.0 + math.e))


def test_fractions_add_up_and_forget() -> None:
    fractions = Fractions(time_constant_s=10.0)
    for k in range(50):
        fractions.add(("gpu", "cpu", "npu")[k % 3], 0.1 * k)
    assert sum(map(fractions.of, ("gpu", "cpu", "npu"))) == pytest.approx(1.0)
    for k in range(50):
        fractions.add("cpu", 100.0 + k)
    assert fractions.of("cpu") > 0.999
