"""Which cell of a KV cache holds which position, so that a sequence's cells stay in their order.

Attention adds up over cells in the order in which they lie in the cache. llama.cpp puts new tokens
into the lowest free cells, also below older tokens of the same sequence; the sum is then rounded
differently than for the same sequence by itself. So cells that are given up are not freed but
buried: they pass to a grave, a sequence that nobody reads, and are freed when they are the very
cells that the next tokens are to get. The lowest free cells are then always the right ones.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class PositionRange(NamedTuple):
    """The positions ``start`` .. ``stop`` - 1 of a native sequence."""

    sequence: int
    start: int
    stop: int


class Burial(NamedTuple):
    """What becomes of cells that nobody holds any more. First ``exhumed`` are freed, which are the
    topmost now, then ``buried`` go into ``grave``; the rest is free."""

    exhumed: tuple[PositionRange, ...]
    buried: tuple[PositionRange, ...]
    grave: int


class Placement(NamedTuple):
    """Cells for new tokens, ascending; ``exhumed`` must be freed before, and nothing else be free
    below the last of them. ``ordered`` is False when some lie below older ones of their
    sequence."""

    cells: tuple[int, ...]
    exhumed: tuple[PositionRange, ...]
    ordered: bool


class CellMap:
    """Mirrors one unified cache of ``n_cells``. ``graves`` are ids of sequences for its use alone.

    Position i of a sequence is the i-th of its cells. Cells are held by any number of sequences,
    buried, loose (free below the topmost used cell, for want of a grave), or never used yet.
    """

    def __init__(self, n_cells: int, graves: Iterable[int]) -> None:
        self.n_cells = n_cells
        self.top = 0
        """One after the topmost cell that is not free."""
        self._holders = [0] * n_cells
        self._cells: dict[int, list[int]] = {}
        self._graves: dict[int, set[int]] = {grave: set() for grave in graves}
        self._buried: dict[int, tuple[int, int]] = {}
        self._dead: list[int] = []
        self._loose: list[int] = []

    def cells(self, sequence: int) -> Sequence[int]:
        return self._cells.get(sequence, ())

    def is_alone(self, sequence: int) -> bool:
        """Whether no other sequence shares cells with this one."""
        return all(self._holders[cell] == 1 for cell in self.cells(sequence))

    def place(self, sequences: Sequence[int]) -> Placement | None:
        """Cells for one new token of each of ``sequences``, in this order; None when there are not
        so many."""
        ordered = self._ascending(sequences)
        if ordered is None or self._loose:
            # The lowest free cells are taken, whatever one would like.
            wanted = self._loose + (self._dead if ordered is None else ordered)
            fresh = range(self.top, min(self.n_cells, self.top + len(sequences)))
            chosen = sorted({*wanted, *fresh})[: len(sequences)]
        else:
            chosen = ordered
        if len(chosen) < len(sequences):
            return None
        return Placement(tuple(chosen), self._ranges(chosen), chosen == ordered)

    def hold(self, sequences: Sequence[int], cells: Sequence[int]) -> None:
        """The placed tokens are there."""
        for sequence, cell in zip(sequences, cells, strict=True):
            self._forget(cell)
            self._holders[cell] = 1
            self._cells.setdefault(sequence, []).append(cell)
        self.top = max(self.top, max(cells, default=-1) + 1)

    def lose(self, cells: Sequence[int]) -> None:
        """The placed tokens did not get there: their cells are free."""
        for cell in cells:
            self._forget(cell)
            if cell < self.top:
                insort(self._loose, cell)

    def fork(self, source: int, target: int, n: int) -> None:
        """``target`` shares the first ``n`` cells of ``source``."""
        shared = list(self.cells(source)[:n])
        for cell in shared:
            self._holders[cell] += 1
        self._cells[target] = shared

    def trim(self, sequence: int, start: int) -> Burial:
        """A sequence gives up its cells from position ``start`` on."""
        cells = self._cells.get(sequence, [])
        dead = []
        for position in range(start, len(cells)):
            self._holders[cells[position]] -= 1
            if not self._holders[cells[position]]:
                dead.append((cells[position], position))
        del cells[start:]
        if not cells:
            self._cells.pop(sequence, None)
        exhumed = self._lower_top({cell for cell, _ in dead})
        return self._bury(sequence, [(c, p) for c, p in dead if c < self.top], exhumed)

    # ---------------------------------------------------------------- internals
    def _ascending(self, sequences: Sequence[int]) -> list[int] | None:
        """The lowest cells in which every token lies above what its sequence has."""
        chosen: list[int] = []
        last, fresh = -1, self.top
        for sequence in sequences:
            held = self._cells.get(sequence)
            last = max(last, held[-1] if held else -1)
            index = bisect_right(self._dead, last)
            if index < len(self._dead) and fresh == self.top:
                last = self._dead[index]
            elif fresh < self.n_cells:
                last, fresh = fresh, fresh + 1
            else:
                return None
            chosen.append(last)
        return chosen

    def _lower_top(self, dying: set[int]) -> tuple[PositionRange, ...]:
        """Let the topmost cells go that nobody holds."""
        exhumed = []
        while self.top and not self._holders[self.top - 1]:
            self.top -= 1
            if self.top not in dying:
                exhumed.append(self.top)
        ranges = self._ranges(exhumed[::-1])
        for cell in exhumed:
            self._forget(cell)
        return ranges

    def _bury(
        self, sequence: int, dead: list[tuple[int, int]], exhumed: tuple[PositionRange, ...]
    ) -> Burial:
        positions = {position for _, position in dead}
        free = (g for g, taken in self._graves.items() if positions.isdisjoint(taken))
        grave = next(free, -1)
        for cell, position in dead:
            if grave < 0:
                insort(self._loose, cell)
            else:
                self._graves[grave].add(position)
                self._buried[cell] = (grave, position)
                insort(self._dead, cell)
        buried = () if grave < 0 else _merge((sequence, p) for _, p in dead)
        return Burial(exhumed, buried, grave)

    def _ranges(self, cells: Iterable[int]) -> tuple[PositionRange, ...]:
        """Where in the graves those of ``cells`` lie that are buried."""
        return _merge(sorted(self._buried[cell] for cell in cells if cell in self._buried))

    def _forget(self, cell: int) -> None:
        """The cell is neither buried nor loose any more."""
        if cell in self._buried:
            grave, position = self._buried.pop(cell)
            self._graves[grave].remove(position)
            del self._dead[bisect_right(self._dead, cell) - 1]
        elif cell in self._loose:
            self._loose.remove(cell)


def _merge(places: Iterable[tuple[int, int]]) -> tuple[PositionRange, ...]:
    """(sequence, position) pairs in ascending order as ranges."""
    ranges: list[PositionRange] = []
    for sequence, position in places:
        if ranges and (ranges[-1].sequence, ranges[-1].stop) == (sequence, position):
            ranges[-1] = ranges[-1]._replace(stop=position + 1)
        else:
            ranges.append(PositionRange(sequence, position, position + 1))
    return tuple(ranges)
