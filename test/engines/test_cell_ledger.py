"""The ledger of cells agrees with a model that holds each cell as a member of a set."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge_vlm_ros.engines.cells import CellLedger

N_CELLS = 60
SEQUENCES = st.integers(0, 7)


class LedgerMachine(RuleBasedStateMachine):
    """Sequences begin, fork from any other at any place, grow, shrink and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CellLedger(N_CELLS)
        self.next_cell = 0
        self.cells: dict[int, list[int]] = {}
        self.own: dict[int, int] = {}
        self.promised: dict[int, int] = {}

    def used(self) -> int:
        return len({cell for cells in self.cells.values() for cell in cells})

    def free(self) -> int:
        promised = sum(max(0, n - self.own[s]) for s, n in self.promised.items())
        return N_CELLS - self.used() - promised

    @rule(sequence=SEQUENCES)
    def begin(self, sequence: int) -> None:
        if sequence not in self.cells:
            self.ledger.begin(sequence)
            self.cells[sequence], self.own[sequence] = [], 0

    @precondition(lambda self: self.cells)
    @rule(sequence=SEQUENCES, data=st.data(), part=st.floats(0, 1))
    def fork(self, sequence: int, data: st.DataObject, part: float) -> None:
        source = data.draw(st.sampled_from(sorted(self.cells)))
        if sequence in self.cells:
            return
        n = round(part * len(self.cells[source]))
        self.ledger.fork(sequence, source, n)
        self.cells[sequence], self.own[sequence] = self.cells[source][:n], 0

    @precondition(lambda self: self.cells)
    @rule(data=st.data(), n=st.integers(0, 20))
    def grow(self, data: st.DataObject, n: int) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.cells)))
        promised = self.promised.get(sequence, 0) - self.own[sequence]
        n = min(n, promised if promised > 0 else self.free())
        self.ledger.grow(sequence, n)
        self.cells[sequence] += range(self.next_cell, self.next_cell + n)
        self.next_cell += n
        self.own[sequence] += n

    @precondition(lambda self: self.cells)
    @rule(data=st.data(), n=st.integers(1, 10))
    def shrink(self, data: st.DataObject, n: int) -> None:
        """A failed command goes back to where it began; forks are never made beyond that."""
        sequence = data.draw(st.sampled_from(sorted(self.cells)))
        if sequence in self.promised:
            return
        others = {c for s, cells in self.cells.items() if s != sequence for c in cells}
        cells = self.cells[sequence]
        own = cells[len(cells) - self.own[sequence] :]
        n = min(n, sum(cell not in others for cell in own))
        self.ledger.grow(sequence, -n)
        del cells[len(cells) - n :]
        self.own[sequence] -= n

    @precondition(lambda self: self.cells)
    @rule(data=st.data(), n=st.integers(1, 25))
    def reserve(self, data: st.DataObject, n: int) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.cells)))
        if self.own[sequence]:
            return
        if sequence in self.promised:
            return
        fits = n <= self.free()
        assert self.ledger.reserve(sequence, n) is fits
        if fits:
            self.promised[sequence] = n

    @precondition(lambda self: self.cells)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.cells)))
        self.ledger.drop(sequence)
        del self.cells[sequence], self.own[sequence]
        self.promised.pop(sequence, None)

    @invariant()
    def agrees(self) -> None:
        assert self.ledger.used == self.used()
        assert self.ledger.free == self.free() >= 0
        answers = sum(max(n, self.own[s]) for s, n in self.promised.items())
        assert self.ledger.answers == answers
        assert self.ledger.reserved == N_CELLS - self.used() - self.free()


LedgerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestCellLedger = LedgerMachine.TestCase


def test_shared_cells_count_once() -> None:
    ledger = CellLedger(100)
    ledger.begin(0)
    ledger.grow(0, 30)
    ledger.fork(1, 0, 30)
    ledger.fork(2, 0, 10)
    assert ledger.used == 30
    ledger.grow(2, 5)
    ledger.fork(3, 2, 12)  # a fork of a fork: cells of both
    assert ledger.used == 35
    ledger.drop(2)  # of whose own cells the other one has two
    assert ledger.used == 32


def test_cells_stay_until_the_last_sequence_that_holds_them_goes() -> None:
    ledger = CellLedger(100)
    ledger.begin(0)
    ledger.grow(0, 30)
    ledger.fork(1, 0, 20)
    ledger.drop(0)
    assert ledger.used == 20
    ledger.begin(0)  # the same id again, other cells
    ledger.grow(0, 5)
    assert ledger.used == 25
    ledger.drop(1)
    assert ledger.used == 5


def test_a_promise_beyond_what_is_free_is_refused() -> None:
    ledger = CellLedger(100)
    ledger.begin(0)
    ledger.grow(0, 30)
    ledger.fork(1, 0, 30)
    ledger.fork(2, 0, 30)
    assert ledger.reserve(1, 50)
    assert not ledger.reserve(2, 21)
    assert ledger.reserve(2, 20)
    assert (ledger.free, ledger.reserved) == (0, 70)
