"""Who holds how many KV cells of a context, and how many are promised."""

from __future__ import annotations

from dataclasses import dataclass, field

from .protocol import TrunkId


@dataclass(eq=False)
class _TrunkCells:
    length: int = 0
    forks: dict[int, int] = field(default_factory=dict)
    """Tokens shared with each branch that lives."""

    @property
    def held(self) -> int:
        return max(self.length, *self.forks.values(), 0)


@dataclass
class _BranchCells:
    trunk: _TrunkCells
    reserved: int = 0
    private: int = 0


class CellLedger:
    """Accounts cells before they are used: a native decode never finds the cache full.

    Cells shared by a trunk and its branches count once. A dropped trunk keeps the cells its
    branches still share.
    """

    def __init__(self, n_cells: int) -> None:
        self.n_cells = n_cells
        self._trunks: dict[TrunkId, _TrunkCells] = {}
        self._dropped: list[_TrunkCells] = []
        self._branches: dict[int, _BranchCells] = {}

    @property
    def used(self) -> int:
        trunks = sum(trunk.held for trunk in (*self._trunks.values(), *self._dropped))
        return trunks + sum(branch.private for branch in self._branches.values())

    @property
    def reserved(self) -> int:
        """Cells promised to branches and not used yet."""
        return sum(max(0, b.reserved - b.private) for b in self._branches.values())

    @property
    def answers(self) -> int:
        """Private cells of branches that have started, promised ones included."""
        return sum(max(b.reserved, b.private) for b in self._branches.values())

    @property
    def free(self) -> int:
        return self.n_cells - self.used - self.reserved

    def grow_trunk(self, trunk: TrunkId, n: int) -> None:
        self._trunks.setdefault(trunk, _TrunkCells()).length += n

    def drop_trunk(self, trunk: TrunkId) -> None:
        cells = self._trunks.pop(trunk, None)
        if cells is not None and cells.forks:
            cells.length = 0
            self._dropped.append(cells)

    def fork(self, branch: int, trunk: TrunkId, n: int) -> None:
        """``branch`` shares the first ``n`` cells of ``trunk``."""
        cells = self._trunks.setdefault(trunk, _TrunkCells())
        cells.forks[branch] = n
        self._branches[branch] = _BranchCells(cells)

    def reserve(self, branch: int, n: int) -> bool:
        """Promise ``n`` private cells to the branch, if so many are free."""
        if n > self.free:
            return False
        self._branches[branch].reserved = n
        return True

    def grow_branch(self, branch: int, n: int) -> None:
        self._branches[branch].private += n

    def drop_branch(self, branch: int) -> None:
        trunk = self._branches.pop(branch).trunk
        del trunk.forks[branch]
        if not trunk.forks and trunk in self._dropped:
            self._dropped.remove(trunk)
