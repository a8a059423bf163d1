"""Where new tokens go, checked against a model of how llama.cpp chooses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from edge_vlm_ros.engines.cell_map import CellMap, Placement, PositionRange


class NativeCells:
    """llama.cpp's bookkeeping: sets of (sequence, position) per cell, lowest free cell first."""

    def __init__(self, n: int) -> None:
        self.cells: list[set[tuple[int, int]]] = [set() for _ in range(n)]

    def place(self, rows: list[tuple[int, int]]) -> list[int]:
        free = [index for index, cell in enumerate(self.cells) if not cell][: len(rows)]
        assert len(free) == len(rows)
        for index, row in zip(free, rows, strict=True):
            self.cells[index].add(row)
        return free

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        for cell in self.cells:
            for position in [p for s, p in cell if s == source and start <= p < stop]:
                cell.add((target, position))

    def remove(self, removed: PositionRange) -> None:
        sequence, start, stop = removed
        for cell in self.cells:
            cell -= {(s, p) for s, p in cell if s == sequence and start <= p < stop}

    def of(self, sequence: int) -> list[int]:
        found = [(p, i) for i, cell in enumerate(self.cells) for s, p in cell if s == sequence]
        return [index for _, index in sorted(found)]


class World:
    """A map and the native cells it mirrors. With ``fill``, cells that come loose are buried."""

    def __init__(self, n_cells: int, n_graves: int, *, fill: bool = False) -> None:
        graves = range(100, 100 + n_graves)
        self.map, self.native = CellMap(n_cells, graves), NativeCells(n_cells)
        self.unordered: set[int] = set()
        self._fill = fill
        self.n_filled = 0

    def grow(self, *sequences: int) -> bool:
        """One more token for each; False when there is no room."""
        placement = self._choose(sequences)
        if placement is None:
            return False
        for removed in placement.exhumed:
            self.native.remove(removed)
        ends = {s: len(self.map.cells(s)) for s in sequences}
        rows = []
        for sequence in sequences:
            rows.append((sequence, self.map.position(sequence, ends[sequence])))
            ends[sequence] += 1
        self._hold(placement, rows)
        return True

    def show(self, sequence: int, *parts: int) -> bool:
        """One more frame, in parts of so many tokens, of a grid whose longer side is 3."""
        start = self.map.position(sequence, len(self.map.cells(sequence)))
        for n in parts:
            placement = self._choose([sequence] * n)
            if placement is None:
                return False
            for removed in placement.exhumed:
                self.native.remove(removed)
            self._hold(placement, [(sequence, start)] * n)
            self.map.go_on_at(sequence, start + 3)
        return True

    def _hold(self, placement: Placement, rows: list[tuple[int, int]]) -> None:
        assert self.native.place(rows) == list(placement.cells), "llama.cpp would choose others"
        sequences, positions = zip(*rows, strict=True)
        self.map.hold(sequences, placement.cells, positions)
        if not placement.ordered:
            self.unordered |= set(sequences)

    def _choose(self, sequences: Sequence[int]) -> Placement | None:
        while True:
            room = self.map.room_for_loose()
            if self._fill and room is not None:
                self.native.place([(room.sequence, p) for p in range(room.start, room.stop)])
                self.map.bury_loose(room)
                self.n_filled += room.stop - room.start
            placement = self.map.place(sequences)
            together = self.map.split(placement.cells) if placement else ()
            if not together:
                return placement
            for removed in together:
                self.native.remove(removed)

    def fail(self, sequence: int, n: int, begin: int) -> None:
        """A part of a frame that began with token ``begin`` cannot be computed."""
        placement = self._choose([sequence] * n)
        if placement is None:
            return
        position = self.map.position(sequence, begin)
        for removed in (*placement.exhumed, PositionRange(sequence, position, 10**9)):
            self.native.remove(removed)
        self.map.lose(placement.cells)
        for removed in self.map.lose_tail(sequence, begin):
            self.native.remove(removed)

    def fork(self, source: int, target: int, n: int) -> None:
        self.native.copy(source, target, 0, self.map.position(source, n))
        self.map.fork(source, target, n)
        if source in self.unordered:
            self.unordered.add(target)

    def trim(self, sequence: int, start: int = 0) -> None:
        position = self.map.position(sequence, start) if start else 0
        burial = self.map.trim(sequence, start)
        for removed in burial.exhumed:
            self.native.remove(removed)
        for dead in burial.buried:
            self.native.copy(sequence, burial.grave, dead.start, dead.stop)
        self.native.remove(PositionRange(sequence, position, 10**9))
        if not start:
            self.unordered.discard(sequence)

    def check(self, sequences: range) -> None:
        for sequence in sequences:
            cells = list(self.map.cells(sequence))
            # Which of a frame's tokens is where, llama.cpp's positions alone do not say.
            assert sorted(cells) == sorted(self.native.of(sequence))
            ends = [n for n in range(len(cells) + 1) if not self.map.is_cut(sequence, n)]
            native = self.native.of(sequence)
            for start, stop in pairwise(ends):
                assert sorted(cells[start:stop]) == native[start:stop]
            assert cells == sorted(cells) or sequence in self.unordered
        used = [index for index, cell in enumerate(self.native.cells) if cell]
        assert self.map.top == max(used, default=-1) + 1


def test_tokens_lie_in_order_one_after_the_other() -> None:
    world = World(10, 2)
    world.grow(0, 0, 0)
    world.grow(1, 1)
    world.grow(0)
    assert (world.map.cells(0), world.map.cells(1)) == ([0, 1, 2, 5], [3, 4])
    world.check(range(2))


def test_a_hole_below_is_left_to_others() -> None:
    world = World(10, 2)
    world.grow(0, 0)
    world.grow(1, 1)
    world.trim(0)
    world.grow(1)
    assert list(world.map.cells(1)) == [2, 3, 4], "not into the hole at 0"
    world.grow(2, 2, 2)
    assert list(world.map.cells(2)) == [0, 1, 5]
    world.check(range(3))
    assert not world.unordered


def test_the_top_is_given_back() -> None:
    world = World(10, 2)
    world.grow(0, 0)
    world.fork(0, 1, 2)
    world.grow(1, 1)
    assert world.map.top == 4
    world.trim(1)
    assert world.map.top == 2
    world.grow(0)
    assert list(world.map.cells(0)) == [0, 1, 2]


def test_rows_of_several_sequences_keep_the_order_of_each() -> None:
    world = World(12, 3)
    world.grow(0, 0)
    world.grow(1, 1)
    world.grow(2, 2)
    world.trim(0)
    world.grow(2, 1, 3)
    world.check(range(4))
    assert not world.unordered


def test_without_room_above_it_is_told() -> None:
    world = World(4, 2)
    world.grow(0, 0)
    world.grow(1, 1)
    world.trim(0)
    placement = world.map.place([1])
    assert placement is not None and placement.cells == (0,) and not placement.ordered
    assert world.grow(1) and world.grow(1)
    assert world.map.place([1]) is None
    world.check(range(2))


def test_a_lost_placement_leaves_free_cells() -> None:
    world = World(6, 1)
    world.grow(0, 0)
    world.grow(1, 1)
    world.trim(0)
    placement = world.map.place([2])
    assert placement is not None
    for removed in placement.exhumed:
        world.native.remove(removed)
    world.map.lose(placement.cells)
    world.grow(1)
    world.check(range(3))


@pytest.mark.parametrize("n_graves", [0, 1, 3, 20])
@pytest.mark.parametrize("seed", range(10))
def test_llama_cpp_chooses_what_the_map_says(seed: int, n_graves: int) -> None:
    """Random use of a small cache: whatever happens, the mirror is right, and sequences are in
    order unless there was no room for that."""
    rng = random.Random(seed)
    world = World(40, n_graves)
    sequences = range(6)
    n_unordered = 0
    for _ in range(400):
        sequence = rng.choice(sequences)
        held = len(world.map.cells(sequence))
        match rng.randrange(5):
            case 0 | 1:
                world.grow(*[sequence] * rng.randint(1, 5))
            case 2:
                world.grow(*rng.sample(sequences, rng.randint(1, 3)))
            case 3:
                world.trim(sequence, rng.randint(0, held))
                if rng.random() < 0.5:
                    world.trim(sequence)
            case 4:
                source = rng.choice(sequences)
                if not held and source != sequence:
                    world.fork(source, sequence, rng.randint(0, len(world.map.cells(source))))
        n_unordered += len(world.unordered)
        world.check(sequences)
        world.unordered = {
            s for s in sequences if list(world.map.cells(s)) != sorted(world.map.cells(s))
        }
    if n_graves == 20:
        assert n_unordered < 400 * len(sequences) / 2


def test_a_frame_takes_one_position() -> None:
    world = World(20, 2)
    world.grow(0, 0)
    world.show(0, 4, 2)
    world.grow(0)
    assert [world.map.position(0, n) for n in range(11)] == [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7]
    assert [n for n in range(10) if world.map.is_cut(0, n)] == [3, 4, 5, 6, 7]
    world.fork(0, 1, 8)
    assert world.map.position(1, 8) == 5
    world.grow(1)
    world.trim(0, 2)
    assert world.map.position(0, 2) == 2
    world.check(range(2))


def test_a_dead_frame_is_used_again_in_part() -> None:
    """The rest of its cells stays for the frame's next part, whoever comes in between."""
    world = World(20, 4, fill=True)
    world.show(0, 6)
    world.grow(1)
    world.trim(0)
    world.show(2, 2)
    world.grow(1)
    world.show(2, 2)
    world.grow(2)
    assert list(world.map.cells(2)) == [0, 1, 2, 3, 4]
    assert list(world.map.cells(1)) == [6, 7]
    assert world.n_filled == 6 and not world.unordered
    world.check(range(3))


def test_a_frame_that_fails_leaves_free_cells() -> None:
    world = World(20, 4)
    world.grow(0, 0)
    world.show(0, 3)
    world.grow(1)
    world.fail(0, 3, begin=2)
    assert (list(world.map.cells(0)), world.map.position(0, 2)) == ([0, 1], 2)
    world.check(range(2))
    world.show(0, 2, 2)
    world.check(range(2))


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("n_graves", [0, 1, 3, 20])
@pytest.mark.parametrize("seed", range(10))
def test_frames_in_grids_are_chosen_cells_for(seed: int, n_graves: int, fill: bool) -> None:
    rng = random.Random(seed)
    world = World(60, n_graves, fill=fill)
    sequences = range(6)
    n_unordered = 0
    for _ in range(400):
        sequence = rng.choice(sequences)
        cells = world.map.cells(sequence)
        ends = [n for n in range(len(cells) + 1) if not world.map.is_cut(sequence, n)]
        match rng.randrange(6):
            case 0:
                world.grow(*[sequence] * rng.randint(1, 5))
            case 1:
                world.grow(*rng.sample(sequences, rng.randint(1, 3)))
            case 2:
                world.show(sequence, *[rng.randint(1, 4)] * rng.randint(1, 2))
            case 3:
                world.trim(sequence, rng.choice(ends))
                if rng.random() < 0.5:
                    world.trim(sequence)
            case 4:
                source = rng.choice(sequences)
                shared = world.map.cells(source)
                cuts = [n for n in range(len(shared) + 1) if not world.map.is_cut(source, n)]
                if not cells and source != sequence:
                    world.fork(source, sequence, rng.choice(cuts))
            case 5:
                world.fail(sequence, rng.randint(1, 3), begin=len(cells))
        n_unordered += len(world.unordered)
        world.check(sequences)
        world.unordered = {
            s for s in sequences if list(world.map.cells(s)) != sorted(world.map.cells(s))
        }
    if n_graves == 20 and fill:
        assert n_unordered < 400 * len(sequences) / 2
    assert bool(world.n_filled) is (fill and n_graves > 0)
