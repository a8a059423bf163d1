"""Which cell of a KV cache holds which position, so that a sequence's cells stay in their order.

Attention adds up over cells in the order in which they lie in the cache. llama.cpp puts new tokens
into the lowest free cells, also below older tokens of the same sequence; the sum is then rounded
differently than for the same sequence by itself. So cells that are given up are not freed but
buried: they pass to a grave, a sequence that nobody reads, and are freed when they are the very
cells that the next tokens are to get. The lowest free cells are then always the right ones.

A cell is named by its position in a sequence. The cells of a frame in a grid (M-RoPE) share one
position, the first of the frame: they are buried together, and before some of them are used they
are given positions of their own (`split`, `room_for_loose`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
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

    Token i of a sequence is in the i-th of its cells. Cells are held by any number of sequences,
    buried, loose (free below the topmost used cell, for want of a grave), or never used yet.
    """

    def __init__(self, n_cells: int, graves: Iterable[int]) -> None:
        self.n_cells = n_cells
        self.top = 0
        """One after the topmost cell that is not free."""
        self._holders = [0] * n_cells
        self._cells: dict[int, list[int]] = {}
        self._positions: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}
        self._graves: dict[int, dict[int, list[int]]] = {grave: {} for grave in graves}
        """Cells by grave and position."""
        self._buried: dict[int, tuple[int, int]] = {}
        self._dead: list[int] = []
        self._loose: list[int] = []

    def cells(self, sequence: int) -> Sequence[int]:
        return self._cells.get(sequence, ())

    def position(self, sequence: int, n: int) -> int:
        """The position of token ``n``; of those that do not exist yet, if text goes on."""
        positions = self._positions.get(sequence, ())
        if n < len(positions):
            return positions[n]
        return self._next.get(sequence, 0) + n - len(positions)

    def is_cut(self, sequence: int, n: int) -> bool:
        """Whether token ``n`` and the one before belong to the same group of cells."""
        inside = 0 < n < len(self.cells(sequence))
        return inside and self.position(sequence, n - 1) == self.position(sequence, n)

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

    def split(self, cells: Iterable[int]) -> tuple[PositionRange, ...]:
        """Those of the cells that are buried with others cannot be had alone: all of these are
        loose now, and what is returned is to be freed."""
        wanted = {c for cell in cells for c in self._group(cell) if len(self._group(cell)) > 1}
        ranges = self._ranges(wanted)
        for cell in wanted:
            self._forget(cell)
            insort(self._loose, cell)
        self._lower_top_to_dead()
        return ranges

    def hold(
        self, sequences: Sequence[int], cells: Sequence[int], positions: Sequence[int]
    ) -> None:
        """The placed tokens are there, at these positions, which ascend in each sequence."""
        for sequence, cell, position in zip(sequences, cells, positions, strict=True):
            self._forget(cell)
            self._holders[cell] = 1
            self._cells.setdefault(sequence, []).append(cell)
            self._positions.setdefault(sequence, []).append(position)
            self._next[sequence] = position + 1
        self.top = max(self.top, max(cells, default=-1) + 1)

    def go_on_at(self, sequence: int, position: int) -> None:
        """The next token of a sequence will be there: its last item takes positions up to that."""
        self._next[sequence] = position

    def lose(self, cells: Sequence[int]) -> None:
        """The placed tokens did not get there: their cells are free."""
        for cell in cells:
            self._forget(cell)
            if cell < self.top:
                insort(self._loose, cell)
        self._lower_top_to_dead()

    def lose_tail(self, sequence: int, start: int) -> tuple[PositionRange, ...]:
        """The cells of a sequence from token ``start`` on, which no other has, are free already.
        What is returned is to be freed too."""
        dead = list(self.cells(sequence)[start:])
        for cell in dead:
            self._holders[cell] -= 1
            insort(self._loose, cell)
        self._cut(sequence, start)
        return self._lower_top({})

    def fork(self, source: int, target: int, n: int) -> None:
        """``target`` shares the first ``n`` cells of ``source``."""
        shared = list(self.cells(source)[:n])
        for cell in shared:
            self._holders[cell] += 1
        next_position = self.position(source, len(shared))
        self._cells[target] = shared
        self._positions[target] = self._positions.get(source, [])[:n]
        self._next[target] = next_position

    def trim(self, sequence: int, start: int) -> Burial:
        """A sequence gives up its cells from token ``start`` on."""
        dead = []
        for index, cell in enumerate(self.cells(sequence)[start:], start):
            self._holders[cell] -= 1
            if not self._holders[cell]:
                dead.append((cell, self.position(sequence, index)))
        self._cut(sequence, start)
        groups: dict[int, list[int]] = {}
        for cell, position in sorted(dead):
            groups.setdefault(position, []).append(cell)
        exhumed = self._lower_top({cell: groups[position] for cell, position in dead})
        burial = self._bury(sequence, [(c, p) for c, p in dead if c < self.top], exhumed)
        if burial.grave >= 0:
            return burial
        return burial._replace(exhumed=(*exhumed, *self._lower_top({})))

    def room_for_loose(self) -> PositionRange | None:
        """Where in a grave all loose cells have room, if there are any and a grave."""
        if not (self._loose and self._graves):
            return None
        grave = min(self._graves, key=lambda g: len(self._graves[g]))
        first = max(self._graves[grave], default=-1) + 1
        return PositionRange(grave, first, first + len(self._loose))

    def bury_loose(self, room: PositionRange) -> None:
        """The loose cells, in ascending order, are there now."""
        for cell, position in zip(self._loose, range(room.start, room.stop), strict=True):
            self._lay(room.sequence, position, cell)
        self._loose.clear()

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

    def _group(self, cell: int) -> Sequence[int]:
        """All cells, ascending, that are exhumed with a buried one; any other is by itself."""
        if cell not in self._buried:
            return (cell,)
        grave, position = self._buried[cell]
        return self._graves[grave][position]

    def _cut(self, sequence: int, start: int) -> None:
        """Forget the tokens of a sequence from ``start`` on."""
        next_position = self.position(sequence, min(start, len(self.cells(sequence))))
        if not start or not self.cells(sequence):
            for part in (self._cells, self._positions, self._next):
                part.pop(sequence, None)
            return
        del self._cells[sequence][start:]
        del self._positions[sequence][start:]
        self._next[sequence] = next_position

    def _lower_top(self, dying: Mapping[int, Sequence[int]]) -> tuple[PositionRange, ...]:
        """Let the topmost cells go that nobody holds: whole groups. ``dying`` are the groups of
        cells that have just been given up."""
        bottom = self.top
        while bottom and not self._holders[bottom - 1]:
            bottom -= 1
        groups = [dying.get(cell) or self._group(cell) for cell in range(bottom, self.top)]
        for group in sorted(groups, key=lambda group: group[0]):
            if group[0] < bottom:  # it must stay, and so must all that is below its last cell
                bottom = max(bottom, group[-1] + 1)
        exhumed = [cell for cell in range(bottom, self.top) if cell not in dying]
        self.top = bottom
        ranges = self._ranges(exhumed)
        for cell in exhumed:
            self._forget(cell)
        return ranges

    def _lower_top_to_dead(self) -> None:
        """Loose cells at the top are below it no more."""
        while self._loose and self._loose[-1] == self.top - 1:
            self.top = self._loose.pop()

    def _bury(
        self, sequence: int, dead: list[tuple[int, int]], exhumed: tuple[PositionRange, ...]
    ) -> Burial:
        positions = {position for _, position in dead}
        free = (g for g, taken in self._graves.items() if positions.isdisjoint(taken.keys()))
        grave = next(free, -1)
        for cell, position in dead:
            if grave < 0:
                insort(self._loose, cell)
            else:
                self._lay(grave, position, cell)
        buried = () if grave < 0 else _merge(sorted({(sequence, p) for _, p in dead}))
        return Burial(exhumed, buried, grave)

    def _lay(self, grave: int, position: int, cell: int) -> None:
        insort(self._graves[grave].setdefault(position, []), cell)
        self._buried[cell] = (grave, position)
        insort(self._dead, cell)

    def _ranges(self, cells: Iterable[int]) -> tuple[PositionRange, ...]:
        """Where in the graves those of ``cells`` lie that are buried."""
        return _merge(sorted({self._buried[cell] for cell in cells if cell in self._buried}))

    def _forget(self, cell: int) -> None:
        """The cell is neither buried nor loose any more."""
        if cell in self._buried:
            grave, position = self._buried.pop(cell)
            group = self._graves[grave][position]
            group.remove(cell)
            if not group:
                del self._graves[grave][position]
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
