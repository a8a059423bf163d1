"""Costs: what is fitted from steps, guessed from sizes, and added up."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from status_samples import ENGINE

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import (
    BatchCost,
    CostModel,
    EngineCosts,
    MoveCost,
    RowCost,
    even_batches,
)
from edge_vlm_ros.planning.fitting import (
    MoveSample,
    RowSample,
    fit_batches,
    fit_moves,
    fit_rows,
)
from edge_vlm_ros.planning.rough import rough_costs

TRUE = RowCost(2e-3, 3e-4, 5e-7)
TILED = BatchCost(((1, 0.028), (2, 0.083), (3, 0.097), (4, 0.106), (8, 0.163)), 1e-6)
SHAPES = [(rows, history) for rows in (1, 16, 64) for history in (0, 100, 700, 2000)]


def samples(cost: RowCost, shapes: list[tuple[int, int]] = SHAPES) -> list[RowSample]:
    return [RowSample(rows, history, cost.seconds(rows, history)) for rows, history in shapes]


def test_a_fit_finds_the_coefficients() -> None:
    found = fit_rows(samples(TRUE))
    assert found.fixed_s == pytest.approx(TRUE.fixed_s, rel=1e-6)
    assert found.row_s == pytest.approx(TRUE.row_s, rel=1e-6)
    assert found.row_history_s == pytest.approx(TRUE.row_history_s, rel=1e-6)
    moves = [MoveSample(n, 1e-3 + n * 2e-9) for n in (1000, 50_000, 4_000_000)]
    assert fit_moves(moves).fixed_s == pytest.approx(1e-3)
    assert fit_moves(moves).byte_s == pytest.approx(2e-9)


def test_a_few_wild_steps_do_not_spoil_a_fit() -> None:
    rng = random.Random(1)
    good = [replace(s, seconds=s.seconds * rng.uniform(0.98, 1.02)) for s in samples(TRUE) * 4]
    # The machine did something else, more often than not during long steps.
    wild = [replace(s, seconds=s.seconds * 3) for s in samples(TRUE) if s.rows > 1]
    found = fit_rows(good + wild)
    for rows, history in SHAPES:
        assert found.seconds(rows, history) == pytest.approx(TRUE.seconds(rows, history), rel=0.04)


def test_noise_is_not_taken_for_history() -> None:
    """Two kinds of steps, as a slow engine does them in the time it has: history is one way to
    tell them apart, and would make a step behind a real history hundreds of times longer."""
    rng = random.Random(3)
    for _ in range(50):
        seen = [
            RowSample(rows, history, (0.05 + 0.03 * rows) * rng.uniform(0.9, 1.1))
            for rows, history in [(16, 0), (64, 16)] * 3
        ]
        assert fit_rows(seen).seconds(64, 2000) == pytest.approx(0.05 + 0.03 * 64, rel=0.15)


def test_coefficients_are_never_negative() -> None:
    # Steps that get faster with more history: plain least squares would extrapolate below 0.
    falling = [RowSample(8, history, 1e-2 - 1e-6 * history) for history in (0, 1000, 5000)]
    found = fit_rows(falling)
    assert min(found.fixed_s, found.row_s, found.row_history_s) >= 0
    assert found.seconds(8, 1000) == pytest.approx(8e-3, rel=0.3)


def test_what_steps_cannot_tell_apart_still_fits_them() -> None:
    """An engine that decodes one answer at a time has only steps of one row."""
    shapes = [(1, history) for history in (64, 512, 2048)]
    found = fit_rows(samples(TRUE, shapes))
    assert found.row_s == 0
    for rows, history in shapes:
        assert found.seconds(rows, history) == pytest.approx(TRUE.seconds(rows, history))
    assert fit_rows([RowSample(4, 0, 0.5)]).seconds(4, 0) == pytest.approx(0.5)
    assert fit_moves([MoveSample(10, 0.5)] * 3).seconds(10) == pytest.approx(0.5)


def test_steps_of_batches_are_found_however_unevenly_they_grow() -> None:
    rng = random.Random(2)
    shapes = [(n, h) for n, _ in TILED.calls for h in (20, 25)] + [(1, 900), (8, 900)]
    steps = [RowSample(n, h, TILED.call_s(n, h) * rng.uniform(0.98, 1.02)) for n, h in shapes * 5]
    # A few steps were disturbed, and of one size too few were seen to believe them.
    wild = [RowSample(n, 20, 0.5) for n, _ in TILED.calls for _ in range(2)]
    found = fit_batches([*steps, *wild, RowSample(6, 20, 0.9)])
    for n, h in [(1, 0), (2, 0), (3, 500), (4, 100), (8, 900)]:
        assert found.call_s(n, h) == pytest.approx(TILED.call_s(n, h), rel=0.05)
    assert found.call_s(6, 0) == pytest.approx((0.106 + 0.163) / 2, rel=0.05)


def test_few_steps_of_batches_are_better_than_none() -> None:
    assert fit_batches([RowSample(1, 50, 0.5)]).call_s(1, 800) == pytest.approx(0.5)
    two = fit_batches([RowSample(1, 50, 0.5), RowSample(2, 50, 0.6)])
    assert two.call_s(2, 0) == pytest.approx(0.6)
    # A step does not take less behind more history, nor nothing at all.
    falling = fit_batches([RowSample(1, h, 0.1 - 1e-4 * h) for h in (0, 10, 20, 900, 910, 920)])
    assert falling.row_history_s == 0.0 and falling.seconds(1, 0) > 0.0


def test_between_and_beyond_known_batches_it_goes_on_straight() -> None:
    assert TILED.call_s(2, 0) == 0.083
    assert TILED.call_s(2.5, 0) == pytest.approx(0.090)
    assert TILED.call_s(6, 0) == pytest.approx(0.1345)
    assert TILED.call_s(12, 0) == pytest.approx(0.163 + 4 * (0.163 - 0.106) / 4)
    assert TILED.call_s(0.5, 0) == 0.028
    falling = BatchCost(((1, 2.0), (7, 9.0), (8, 8.0)), 0.0)
    assert falling.call_s(7.5, 0) == pytest.approx(8.5) and falling.call_s(20, 0) == 8.0
    assert BatchCost(((1, 2.0),), 0.0).call_s(3, 0) == 2.0
    even = even_batches(2e-3, 3e-4, 5e-7)
    for n, history in [(1, 0), (2, 30), (5, 700), (64, 9)]:
        assert even.seconds(n, history) == pytest.approx(TRUE.seconds(n, history))
    assert even.times(2.0).seconds(5, 700) == pytest.approx(2 * TRUE.seconds(5, 700))


def test_a_step_is_the_calls_that_take_least() -> None:
    # Two calls of one row instead of one of two, as the engine does it; of eight only one.
    assert TILED.step_s(2) == pytest.approx(2 * 0.028)
    assert TILED.seconds(2, 500) == pytest.approx(2 * 0.028 + 2 * 500 * 1e-6)
    assert TILED.step_s(3) == pytest.approx(3 * 0.028)
    assert TILED.step_s(4) == 0.106, "112 ms in four calls"
    assert TILED.step_s(5) == pytest.approx(TILED.call_s(5, 0))
    assert TILED.steps_s(8)[8] == 0.163 and TILED.steps_s(0) == (0.0,)


def test_nothing_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="no step was measured"):
        fit_batches([])
    with pytest.raises(ValueError, match="no step was measured"):
        fit_rows([])


def test_prefill_in_chunks_is_the_sum_of_its_steps() -> None:
    costs = EngineCosts(TRUE, TILED, MoveCost(0, 0), MoveCost(0, 0))
    steps = sum(TRUE.seconds(64, 500 + 64 * i) for i in range(4))
    assert costs.prefill_s(256, 500, 64) == pytest.approx(steps)
    assert costs.prefill_s(0, 500, 64) == 0


def test_slowdowns_of_several_others_are_multiplied() -> None:
    prefill, decode = Activity.PREFILL, Activity.DECODE
    pairs = {(("a", decode), ("b", prefill)): 1.5, (("a", decode), ("c", decode)): 2.0}
    costs = CostModel({}, {}, pairs)
    assert costs.slowdown("a", decode, [("b", prefill), ("c", decode)]) == 3.0
    assert costs.slowdown("a", decode, [("b", decode), ("a", prefill)]) == 1.0
    assert costs.slowdown("b", decode, [("a", decode)]) == 1.0


def test_rough_costs_follow_sizes_and_devices() -> None:
    small = replace(ENGINE, name="small", device="cpu", memory_weights_bytes=10**7)
    large = replace(small, name="large", memory_weights_bytes=3 * 10**9)
    fast = replace(large, name="fast", device="cuda:0")
    served = replace(large, name="served", device="rpc:127.0.0.1:5000")
    costs = rough_costs([small, large, fast, served], ["vision"])
    token = {name: of.decode.seconds(1, 500) for name, of in costs.engines.items()}
    assert token["small"] < token["fast"] < token["large"] == token["served"]
    # 3 GB at 10 GB/s, and what little comes to that.
    assert 0.3 < token["large"] < 0.5
    assert set(costs.encode_s) == {"vision"} and not costs.slowdowns
