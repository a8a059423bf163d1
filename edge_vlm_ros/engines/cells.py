"""Who holds how many KV cells of a context, and how many are promised."""

from __future__ import annotations

from dataclasses import dataclass, field

from .protocol import TrunkId


@dataclass
class _TrunkCells:
    length: int = 0
    dropped: bool = False
    forks: dict[int, int] = field(default_factory=dict)
    """Tokens shared with each branch that lives."""

    @property
    def held(self) -> int:
        return max(self.forks.values(), default=0) if self.dropped else self.length


@dataclass
class _BranchCells:
    trunk: TrunkId
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
        self._branches: dict[int, _BranchCells] = {}

    @property
    def used(self) -> int:
        trunks = sum(trunk.held for trunk in self._trunks.values())
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
        cells = self._trunks.get(trunk)
        if cells is None:
            return
        cells.dropped = True
        if not cells.forks:
            del self._trunks[trunk]

    def fork(self, branch: int, trunk: TrunkId, n: int) -> None:
        """``branch`` shares the first ``n`` cells of ``trunk``."""
        self._trunks.setdefault(trunk, _TrunkCells()).forks[branch] = n
        self._branches[branch] = _BranchCells(trunk)

    def reserve(self, branch: int, n: int) -> bool:
        """Promise ``n`` private cells to the branch, if so many are free."""
        if n > self.free:
            return False
        self._branches[branch].reserved = n
        return True

    def grow_branch(self, branch: int, n: int) -> None:
        self._branches[branch].private += n

    def drop_branch(self, branch: int) -> None:
        cells = self._branches.pop(branch)
        trunk = self._trunks[cells.trunk]
        del trunk.forks[branch]
        if trunk.dropped and not trunk.forks:
            del self._trunks[cells.trunk]
