"""The ledger of cells agrees with a model that holds each cell as a member of a set."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge_vlm_ros.engines.cells import CellLedger
from edge_vlm_ros.engines.protocol import TrunkId

N_CELLS = 60
TRUNKS = [TrunkId("a", 0), TrunkId("a", 1), TrunkId("b", 0)]


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = CellLedger(N_CELLS)
        self.next_cell = 0
        self.next_branch = 0
        self.trunks: dict[TrunkId, list[int]] = {}
        self.shared: dict[int, list[int]] = {}
        self.private: dict[int, list[int]] = {}
        self.promised: dict[int, int] = {}

    def new_cells(self, n: int) -> list[int]:
        self.next_cell += n
        return list(range(self.next_cell - n, self.next_cell))

    def used(self) -> int:
        holders = [*self.trunks.values(), *self.shared.values(), *self.private.values()]
        return len({cell for cells in holders for cell in cells})

    def free(self) -> int:
        promised = sum(max(0, n - len(self.private[b])) for b, n in self.promised.items())
        return N_CELLS - self.used() - promised

    @rule(trunk=st.sampled_from(TRUNKS), n=st.integers(0, 20))
    def grow_trunk(self, trunk: TrunkId, n: int) -> None:
        if n > self.free():
            return
        self.ledger.grow_trunk(trunk, n)
        self.trunks.setdefault(trunk, []).extend(self.new_cells(n))

    @rule(trunk=st.sampled_from(TRUNKS), n=st.integers(1, 10))
    def shrink_trunk(self, trunk: TrunkId, n: int) -> None:
        """A failed command goes back to where it began; forks are never made beyond that."""
        cells = self.trunks.get(trunk, [])
        held = {cell for shared in self.shared.values() for cell in shared}
        n = min(n, sum(cell not in held for cell in cells))
        if n:
            self.ledger.grow_trunk(trunk, -n)
            del cells[len(cells) - n :]

    @rule(trunk=st.sampled_from(TRUNKS))
    def drop_trunk(self, trunk: TrunkId) -> None:
        self.ledger.drop_trunk(trunk)
        self.trunks.pop(trunk, None)

    @rule(trunk=st.sampled_from(TRUNKS), part=st.floats(0, 1))
    def fork(self, trunk: TrunkId, part: float) -> None:
        cells = self.trunks.get(trunk, [])
        shared = cells[: round(part * len(cells))]
        self.ledger.fork(self.next_branch, trunk, len(shared))
        self.trunks.setdefault(trunk, cells)
        self.shared[self.next_branch] = shared
        self.private[self.next_branch] = []
        self.next_branch += 1

    @precondition(lambda self: self.private)
    @rule(data=st.data(), n=st.integers(0, 25))
    def reserve(self, data: st.DataObject, n: int) -> None:
        branch = data.draw(st.sampled_from(sorted(self.private)))
        if branch in self.promised:
            return
        fits = n <= self.free()
        assert self.ledger.reserve(branch, n) is fits
        if fits:
            self.promised[branch] = n

    @precondition(lambda self: self.promised)
    @rule(data=st.data(), n=st.integers(1, 10))
    def grow_branch(self, data: st.DataObject, n: int) -> None:
        branch = data.draw(st.sampled_from(sorted(self.promised)))
        n = min(n, self.promised[branch] - len(self.private[branch]))
        self.ledger.grow_branch(branch, n)
        self.private[branch] += self.new_cells(n)

    @precondition(lambda self: self.private)
    @rule(data=st.data())
    def drop_branch(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(sorted(self.private)))
        self.ledger.drop_branch(branch)
        del self.private[branch], self.shared[branch]
        self.promised.pop(branch, None)

    @invariant()
    def agrees(self) -> None:
        assert self.ledger.used == self.used()
        assert self.ledger.free == self.free() >= 0
        assert self.ledger.answers == sum(self.promised.values())
        assert self.ledger.reserved == self.ledger.n_cells - self.ledger.used - self.free()


LedgerMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=25, deadline=None)
TestCellLedger = LedgerMachine.TestCase


def test_shared_cells_count_once() -> None:
    ledger = CellLedger(100)
    ledger.grow_trunk(TRUNKS[0], 30)
    ledger.fork(1, TRUNKS[0], 30)
    ledger.fork(2, TRUNKS[0], 10)
    assert ledger.used == 30


def test_a_dropped_trunk_keeps_what_its_branches_share() -> None:
    ledger = CellLedger(100)
    ledger.grow_trunk(TRUNKS[0], 30)
    ledger.fork(1, TRUNKS[0], 20)
    ledger.drop_trunk(TRUNKS[0])
    assert ledger.used == 20
    ledger.grow_trunk(TRUNKS[0], 5)  # the same name again, other cells
    assert ledger.used == 25
    ledger.drop_branch(1)
    assert ledger.used == 5
    assert not ledger._dropped  # nothing is kept of it


def test_a_promise_beyond_what_is_free_is_refused() -> None:
    ledger = CellLedger(100)
    ledger.grow_trunk(TRUNKS[0], 30)
    ledger.fork(1, TRUNKS[0], 30)
    ledger.fork(2, TRUNKS[0], 30)
    assert ledger.reserve(1, 50)
    assert not ledger.reserve(2, 21)
    assert ledger.reserve(2, 20)
    assert (ledger.free, ledger.reserved) == (0, 70)
