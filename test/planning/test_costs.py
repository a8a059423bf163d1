"""Costs: what is fitted from steps, guessed from sizes, and added up."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from status_samples import ENGINE

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import CostModel, EngineCosts, MoveCost, RowCost
from edge_vlm_ros.planning.fitting import MoveSample, RowSample, fit_moves, fit_rows
from edge_vlm_ros.planning.rough import rough_costs

TRUE = RowCost(2e-3, 3e-4, 5e-7)
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


def test_nothing_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="no step was measured"):
        fit_rows([])


def test_prefill_in_chunks_is_the_sum_of_its_steps() -> None:
    costs = EngineCosts(TRUE, TRUE, MoveCost(0, 0), MoveCost(0, 0))
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
