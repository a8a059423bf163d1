"""Two minutes of `make soak`: the same use and the same checks.

In so short a time the allocators of the processes are not quite at rest: besides 2 % they may grow
by 2 MiB, which is less than a leak of two trunks a second would come to.
"""

from __future__ import annotations

import pytest

from tools.soak.load import WAYS
from tools.soak.soak import Soak
from tools.soak.watch import MIB, MemoryReading, growths

SECONDS = 105.0


@pytest.mark.timeout(480)
def test_nothing_is_lost_and_nothing_grows() -> None:
    result = Soak(SECONDS).run()
    assert result.violations == ()
    assert result.answers > SECONDS / 2, "questions all the time"
    assert set(result.ways) == set(WAYS), "every way of asking"
    assert result.refused["queue_full"], "more was asked than may be pending"
    assert result.samples >= 20


def readings(
    minutes: int, pss_mib_per_minute: float = 0.0, rss_mib_per_minute: float = 0.0
) -> list[MemoryReading]:
    """Of two processes, the second of which grows."""

    def grown(mib_per_minute: float, second: int) -> tuple[int, int]:
        return 100 * MIB, int((100 + mib_per_minute * second / 60) * MIB)

    return [
        MemoryReading(s, grown(pss_mib_per_minute, s), grown(rss_mib_per_minute, s))
        for s in range(60 * minutes)
    ]


def test_growth_is_judged_for_each_process() -> None:
    steady, slow = growths(("cpu", "far"), readings(30, 0.2, 0.2))
    assert not steady.is_too_much(0) and slow.is_too_much(0)
    assert slow.bytes == pytest.approx(0.2 * 18 * MIB, rel=0.01)
    assert not slow.is_too_much(6 * MIB), "within what a short soak allows"
    _, little = growths(("cpu", "far"), readings(30, 0.05, 0.05))
    assert not little.is_too_much(0), "within 2 %"
    _, others_left = growths(("cpu", "far"), readings(30, 0.2, 0.0))
    assert not others_left.is_too_much(0), "only the share of what others mapped too has changed"


def test_warming_up_is_no_growth() -> None:
    cold = [MemoryReading(0.0, (10 * MIB, 10 * MIB), (10 * MIB, 10 * MIB))] * 300
    found = growths(("cpu", "far"), cold + readings(25))
    assert not any(growth.is_too_much(0) for growth in found)


def test_too_few_readings_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="soak longer"):
        growths(("cpu", "far"), readings(1)[:4])
