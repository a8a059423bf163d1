"""Who gets cells, who waits, who is dropped."""

from __future__ import annotations

import pytest
from placement_helpers import end, trunk

from edge_vlm_ros.placement.cell_budget import IDLE_S, CellBudget
from edge_vlm_ros.placement.eviction import cut_ranges, victims
from edge_vlm_ros.placement.residency import ResidencyTable, TrunkRecord


class World:
    """100 cells; trunks of streams whose name begins with ``copy`` are copies."""

    def __init__(self) -> None:
        self.table = ResidencyTable()
        self.now = 100.0
        self.evicted: list[str] = []
        self.budget = CellBudget(
            self.table,
            lambda engine: 100,
            lambda record: not record.trunk.stream.startswith("copy"),
            self._evict,
            lambda: self.now,
        )

    def _evict(self, record: TrunkRecord) -> None:
        self.evicted.append(record.trunk.stream)
        self.table.drop(record)
        self.budget.note_freed()

    def trunk(self, stream: str, tokens: int, used: float = 99.0, epoch: int = 0) -> TrunkRecord:
        return trunk(self.table, "cpu", stream, tokens, used=used, epoch=epoch)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("question", [None, 1])
def test_what_fits_displaces_nothing(world: World, question: int | None) -> None:
    world.trunk("copy", 40)
    record = world.trunk("table", 10)
    assert world.budget.make_room(record, 60, question)
    assert not world.evicted


@pytest.mark.parametrize("question", [None, 1])
def test_copies_go_first_and_the_least_recently_used_of_them(
    world: World, question: int | None
) -> None:
    world.trunk("shelf", 30, used=1.0)
    world.trunk("copy a", 20, used=50.0)
    world.trunk("copy b", 20, used=40.0)
    record = world.trunk("table", 10)
    assert world.budget.make_room(record, 40, question)
    assert world.evicted == ["copy b"]


def test_no_more_than_needed_goes(world: World) -> None:
    for name in "abcd":
        world.trunk(f"copy {name}", 20)
    record = world.trunk("table", 20)
    assert world.budget.make_room(record, 60, 1)
    assert world.evicted == ["copy a", "copy b"]


def test_what_a_question_needs_stays(world: World) -> None:
    needed = world.trunk("copy", 60)
    needed.reserved[1] = 60
    record = world.trunk("table", 10)
    assert not world.budget.make_room(record, 50, 2)
    assert not world.evicted and not world.budget.take_retry()
    del needed.reserved[1]
    world.budget.note_freed()
    assert world.budget.take_retry() and not world.budget.take_retry()
    assert world.budget.make_room(record, 50, 2)
    assert world.evicted == ["copy"]


def test_nothing_goes_in_vain(world: World) -> None:
    world.trunk("copy", 20)
    world.trunk("shelf", 60).reserved[1] = 60
    assert not world.budget.make_room(world.trunk("table", 10), 50, 2)
    assert not world.evicted


def test_frames_do_not_displace_a_stream_that_is_used(world: World) -> None:
    shelf = world.trunk("shelf", 60, used=world.now)
    record = world.trunk("table", 30)
    assert not world.budget.make_room(record, 50, None)
    world.budget.note_freed()
    assert world.budget.take_retry()
    world.now = shelf.last_use + IDLE_S + 1
    assert world.budget.make_room(record, 50, None)
    assert world.evicted == ["shelf"]


def test_frames_that_wait_are_tried_again_when_a_stream_has_become_idle(world: World) -> None:
    assert world.budget.seconds_to_retry(world.now) is None
    world.trunk("shelf", 60, used=world.now - 1.0)
    record = world.trunk("table", 30, used=world.now)
    assert not world.budget.make_room(record, 50, None)
    assert not world.budget.take_retry()
    seconds = world.budget.seconds_to_retry(world.now)
    assert seconds == pytest.approx(IDLE_S - 1.0, abs=0.1)
    world.now += seconds
    assert world.budget.take_retry() and world.budget.seconds_to_retry(world.now) is None
    assert world.budget.make_room(record, 50, None) and world.evicted == ["shelf"]


def test_a_question_displaces_a_stream_that_is_used(world: World) -> None:
    world.trunk("shelf", 60, used=world.now)
    assert world.budget.make_room(world.trunk("table", 30), 50, 1)
    assert world.evicted == ["shelf"]


def test_frames_displace_the_epoch_they_replace_and_no_younger_one(world: World) -> None:
    old = world.trunk("table", 60, used=world.now)
    new = world.trunk("table", 30, used=world.now, epoch=1)
    assert not world.budget.make_room(old, 80, None)
    assert world.budget.make_room(new, 50, None)
    assert world.table.of_stream("table") == [new]


def test_questions_get_room_in_the_order_of_their_arrival(world: World) -> None:
    busy = world.trunk("shelf", 60)
    busy.reserved[1] = 60
    second, third = world.trunk("table", 10), world.trunk("door", 10)
    assert not world.budget.make_room(second, 60, 2)
    assert not world.budget.make_room(third, 15, 3), "it would fit, but the second waits longer"
    assert not world.budget.make_room(third, 12, None), "frames wait behind questions"
    assert world.budget.make_room(third, 10, 3), "what takes no room waits for nobody"
    world.budget.leave(2, None)
    assert world.budget.make_room(third, 15, 3)


def test_who_leaves_waits_no_more(world: World) -> None:
    world.trunk("shelf", 90).reserved[1] = 90
    assert not world.budget.make_room(world.trunk("table", 5), 60, 2)
    world.budget.note_freed()
    world.budget.leave(2, "gpu")
    assert world.budget.take_retry()
    world.budget.note_freed()
    world.budget.leave(2, "cpu")
    assert not world.budget.take_retry()


def test_victims_are_none_when_they_do_not_suffice() -> None:
    table = ResidencyTable()
    small = trunk(table, "cpu", "a", 5)
    assert victims([small], 6, lambda r: True, lambda r: True) is None
    assert victims([small], 5, lambda r: True, lambda r: True) == [small]
    assert victims([small], 0, lambda r: True, lambda r: True) == []
    assert victims([small], 5, lambda r: True, lambda r: False) is None
    empty = table.begin("cpu", "b", 0, end(0, 0), 0.0)
    assert victims([empty, small], 5, lambda r: True, lambda r: True) == [small]


@pytest.mark.parametrize(
    ("tokens", "longest", "cuts"),
    [
        ([0, 10], 5, [0, 1]),
        ([0, 10, 20, 30], 20, [0, 2, 3]),
        ([0, 10, 20, 30], 9, [0, 1, 2, 3]),
        ([0, 10, 20, 30], 100, [0, 3]),
        ([5, 5, 10], 5, [0, 2]),
        ([0, 300, 300], 256, [0, 2]),
        ([0, 10, 10, 10, 20], 10, [0, 3, 4]),
        ([3], 5, [0]),
    ],
)
def test_cuts(tokens: list[int], longest: int, cuts: list[int]) -> None:
    assert cut_ranges(tokens, longest) == cuts
