"""Where new tokens go, checked against a model of how llama.cpp chooses."""

from __future__ import annotations

import random

import pytest

from edge_vlm_ros.engines.cell_map import CellMap, PositionRange


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
        found = {p: i for i, cell in enumerate(self.cells) for s, p in cell if s == sequence}
        return [found[position] for position in sorted(found)]


class World:
    """A map and the native cells it mirrors."""

    def __init__(self, n_cells: int, n_graves: int) -> None:
        graves = range(100, 100 + n_graves)
        self.map, self.native = CellMap(n_cells, graves), NativeCells(n_cells)
        self.unordered: set[int] = set()

    def grow(self, *sequences: int) -> bool:
        """One more token for each; False when there is no room."""
        placement = self.map.place(sequences)
        if placement is None:
            return False
        for removed in placement.exhumed:
            self.native.remove(removed)
        ends = {s: len(self.map.cells(s)) for s in sequences}
        rows = []
        for sequence in sequences:
            rows.append((sequence, ends[sequence]))
            ends[sequence] += 1
        assert self.native.place(rows) == list(placement.cells), "llama.cpp would choose others"
        self.map.hold(sequences, placement.cells)
        if not placement.ordered:
            self.unordered |= set(sequences)
        return True

    def fork(self, source: int, target: int, n: int) -> None:
        self.native.copy(source, target, 0, n)
        self.map.fork(source, target, n)
        if source in self.unordered:
            self.unordered.add(target)

    def trim(self, sequence: int, start: int = 0) -> None:
        burial = self.map.trim(sequence, start)
        for removed in burial.exhumed:
            self.native.remove(removed)
        for dead in burial.buried:
            self.native.copy(sequence, burial.grave, dead.start, dead.stop)
        self.native.remove(PositionRange(sequence, start, 10**9))
        if not start:
            self.unordered.discard(sequence)

    def check(self, sequences: range) -> None:
        for sequence in sequences:
            cells = list(self.map.cells(sequence))
            assert cells == self.native.of(sequence)
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
