"""How often something has happened lately."""

from __future__ import annotations

import pytest

from edge_vlm_ros.planning.rates import EventRate


@pytest.mark.parametrize("rate_hz", [0.1, 1.0, 25.0])
def test_regular_events_are_estimated_right_from_the_beginning(rate_hz: float) -> None:
    rate = EventRate(time_constant_s=30.0)
    for k in range(200):
        now = 100.0 + k / rate_hz
        rate.add(now)
        if k >= 5:
            assert rate.value(now) == pytest.approx(rate_hz, rel=0.2), k


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
