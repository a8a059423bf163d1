"""Time is shared as configured while both sides have work; nobody starves, nobody hoards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from edge_vlm_ros.engines.step_scheduler import StepKind, StepScheduler

INGEST, PREFILL, DECODE = StepKind.INGEST, StepKind.PREFILL, StepKind.DECODE
TRANSFER = StepKind.TRANSFER
Work = Callable[[int], tuple[bool, bool, bool]]


def run(
    scheduler: StepScheduler, cost: dict[StepKind, float], work: Work, steps: int
) -> Iterator[StepKind]:
    for step in range(steps):
        ingest, prefill, decode = work(step)
        kind = scheduler.choose(ingest=ingest, prefill=prefill, decode=decode)
        if kind is not None:
            scheduler.account(kind, cost[kind])
            yield kind


def ingest_share(kinds: list[StepKind], cost: dict[StepKind, float]) -> float:
    ingest = sum(cost[k] for k in kinds if k is INGEST)
    return ingest / sum(cost[k] for k in kinds)


COSTS = [
    {INGEST: 1.0, PREFILL: 1.0, DECODE: 1.0},
    {INGEST: 5.0, PREFILL: 4.0, DECODE: 0.5},
    {INGEST: 0.2, PREFILL: 3.0, DECODE: 2.0},
]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("cost", COSTS)
def test_shares_under_contention(share: float, cost: dict[StepKind, float]) -> None:
    kinds = list(run(StepScheduler(share), cost, lambda _: (True, False, True), 4000))
    assert ingest_share(kinds, cost) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("cost", COSTS)
def test_prefill_counts_as_answering(cost: dict[StepKind, float]) -> None:
    kinds = list(run(StepScheduler(0.3), cost, lambda _: (True, True, True), 4000))
    assert ingest_share(kinds, cost) == pytest.approx(0.3, abs=0.01)


def test_ingestion_in_short_bursts_gets_no_more_than_its_share() -> None:
    """One chunk at a time, the next one ready as soon as it is done and one step went by."""
    scheduler, cost = StepScheduler(0.3), {INGEST: 2.0, PREFILL: 1.0, DECODE: 1.0}
    kinds: list[StepKind] = []
    pause = False
    for _ in range(3000):
        kind = scheduler.choose(ingest=not pause, prefill=False, decode=True)
        assert kind is not None
        scheduler.account(kind, cost[kind])
        pause = kind is INGEST
        kinds.append(kind)
    assert ingest_share(kinds, cost) == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_neither_side_starves(share: float) -> None:
    cost = COSTS[0]
    kinds = list(run(StepScheduler(share), cost, lambda _: (True, False, True), 400))
    assert {INGEST, DECODE} == set(kinds)
    last = {INGEST: 0, DECODE: 0}
    for n, kind in enumerate(kinds):
        last[kind] = n
    assert min(last.values()) > 290


def test_an_idle_side_loses_nothing_to_the_other() -> None:
    cost = COSTS[0]
    assert set(run(StepScheduler(0.9), cost, lambda _: (False, False, True), 20)) == {DECODE}
    assert set(run(StepScheduler(0.1), cost, lambda _: (True, False, False), 20)) == {INGEST}


@pytest.mark.parametrize("idle_first", [INGEST, DECODE])
def test_idle_time_is_not_hoarded(idle_first: StepKind) -> None:
    """After a long time alone of one side, the other gets its share and no arrears."""
    scheduler, cost = StepScheduler(0.5), COSTS[0]
    alone = (False, False, True) if idle_first is INGEST else (True, False, False)
    list(run(scheduler, cost, lambda _: alone, 1000))
    kinds = list(run(scheduler, cost, lambda _: (True, False, True), 20))
    assert kinds.count(INGEST) == 10


def test_prefill_and_decode_take_turns() -> None:
    kinds = list(run(StepScheduler(0.3), COSTS[0], lambda _: (False, True, True), 6))
    assert kinds == [PREFILL, DECODE] * 3


def test_what_has_no_work_is_not_chosen() -> None:
    scheduler = StepScheduler(0.3)
    assert scheduler.choose(ingest=False, prefill=False, decode=False) is None
    for n, wanted in zip(count(), [PREFILL, DECODE, INGEST] * 5, strict=False):
        work = {"ingest": False, "prefill": False, "decode": False}
        kind = scheduler.choose(**{**work, wanted.value: True})
        assert kind is wanted, n
        scheduler.account(wanted, 1.0)


# -------------------------------------------------------------------------------- transfers
def with_transfers(
    scheduler: StepScheduler, work: tuple[bool, bool, bool], steps: int
) -> list[StepKind]:
    kinds = []
    for _ in range(steps):
        ingest, prefill, decode = work
        kind = scheduler.choose(ingest=ingest, prefill=prefill, decode=decode, transfer=True)
        assert kind is not None
        scheduler.account(kind, 1.0)
        kinds.append(kind)
    return kinds


@pytest.mark.parametrize("ingest", [False, True])
@pytest.mark.parametrize("prefill", [False, True])
def test_one_transfer_at_most_between_two_tokens(ingest: bool, prefill: bool) -> None:
    kinds = with_transfers(StepScheduler(0.5), (ingest, prefill, True), 400)
    between = 0
    for kind in kinds:
        between = 0 if kind is DECODE else between + (kind is TRANSFER)
        assert between <= 1
    assert abs(kinds.count(TRANSFER) - kinds.count(DECODE)) <= 1
    assert (INGEST in kinds, PREFILL in kinds) == (ingest, prefill)


@pytest.mark.parametrize("work", [(True, False, False), (False, True, False), (True, True, False)])
def test_transfers_take_turns_with_whatever_there_is(work: tuple[bool, bool, bool]) -> None:
    kinds = with_transfers(StepScheduler(0.5), work, 400)
    assert [kind is TRANSFER for kind in kinds] == [True, False] * 200


def test_transfers_alone() -> None:
    assert set(with_transfers(StepScheduler(0.5), (False, False, False), 9)) == {TRANSFER}


def test_transfers_change_nothing_about_the_shares() -> None:
    kinds = with_transfers(StepScheduler(0.3), (True, False, True), 6000)
    others = [kind for kind in kinds if kind is not TRANSFER]
    assert others.count(INGEST) / len(others) == pytest.approx(0.3, abs=0.01)
