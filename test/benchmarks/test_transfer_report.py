"""What the transfer benchmark makes of its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.transfer_report import (
    Case,
    Handoff,
    Moved,
    Round,
    Spread,
    Step,
    aims,
    delta_gain,
    import_gain,
    report,
    summary,
)

MOVED = Moved(ttft_ms=50.0, n_bytes=3_000_000, export_ms=1.0, import_ms=2.0)
ROUND = Round(
    tokens=1563,
    frames=30,
    local_ms=(40.0, 41.0),
    full=(MOVED, replace(MOVED, ttft_ms=90.0), replace(MOVED, ttft_ms=60.0)),
    delta=(replace(MOVED, ttft_ms=20.0, n_bytes=100_000),),
    replay_frame_ms=(70.0,),
    replay_ms=500.0,
    recompute_ms=630.0,
    handoff=(Handoff(5.0, 9.0, MOVED),),
    encode_ms=8.0,
)


def case(*rounds: Round) -> Case:
    return Case("q8_0", "cpu", "rpc", rounds)


def test_a_move_sums_its_steps() -> None:
    steps = [
        Step("export", 256, 1000, 0.001),
        Step("export", 44, 500, 0.0005),
        Step("import", 256, 1000, 0.002),
        Step("import", 44, 500, 0.001),
    ]
    assert Moved.of(12.0, steps) == Moved(12.0, 1500, pytest.approx(1.5), pytest.approx(3.0))


@pytest.mark.parametrize("steps", [[], [Step("export", 1, 10, 0.1)], [Step("import", 1, 10, 0.1)]])
def test_a_move_that_is_not_whole_is_refused(steps: list[Step]) -> None:
    with pytest.raises(RuntimeError, match="bytes were exported"):
        Moved.of(1.0, steps)


def test_ratios_are_taken_within_each_round() -> None:
    """A machine that is twice as slow in one round changes none of them."""
    slow = replace(
        ROUND,
        full=tuple(replace(m, ttft_ms=2 * m.ttft_ms) for m in ROUND.full),
        recompute_ms=2 * ROUND.recompute_ms,
    )
    assert import_gain(case(ROUND, slow)) == Spread(10.5, 10.5, 10.5)
    assert delta_gain(case(ROUND, slow)) == Spread(47.25, 31.5, 63.0)


def test_a_spread_is_told_where_it_shows() -> None:
    assert Spread.of([3.0, 1.0, 2.0]).text() == "2.0 (1.0..3.0)"
    assert Spread.of([2.04, 2.0]).text() == "2.0"
    assert Spread.of([2.04, 2.0]).text(2) == "2.02 (2.00..2.04)"


def test_aims_are_for_one_length() -> None:
    text = aims([case(ROUND), case(replace(ROUND, tokens=263))])
    assert text.count("**met**") == 2 and "10.5 times" in text
    slower = replace(ROUND, full=tuple(replace(m, ttft_ms=64.0) for m in ROUND.full))
    assert "import of all 9.8 times faster than recomputing, the aim is 10: **NOT MET**" in aims(
        [case(slower)]
    )
    assert aims([case(replace(ROUND, tokens=4111))]) == ""


def test_the_tables() -> None:
    text = report([case(ROUND)])
    for table in text.split("## ")[1:4]:
        _, _, *rows = table.strip().splitlines()
        assert len(rows) == 3
        assert len({row.count("|") for row in rows}) == 1
    assert (
        "| 60.0 (50.0..90.0) | 20.0 | 70.0 | 500 | 630 | **10.5** | **31.5** | 8.3 | 3.5 |" in text
    )
    assert "| 3.00 | 1.00 | 2.00 | 3.00 | 1.50 | 0.10 | 1.00 | 2.00 |" in text
    assert "| 5.0 | 9.0 | 4.0 | 50.0 | 3000 | 1.00 | 2.00 |" in text


def test_what_was_left_out() -> None:
    text = report([case(replace(ROUND, replay_ms=None))])
    assert "| 70.0 | - | 630 | **10.5** | **31.5** | - | 3.5 |" in text


def test_a_case_in_one_line() -> None:
    assert summary(case(ROUND)) == (
        "q8_0 KV, cpu -> rpc, 1563 tokens: local 40.5, import 60.0, of 1 frame 20.0, "
        "recompute 630 ms; 10.5 and 31.5 times faster"
    )
