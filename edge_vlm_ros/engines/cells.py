"""Who holds how many KV cells of a context, and how many are promised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class _Run:
    """Cells that one sequence has added; others may share a prefix of them."""


@dataclass
class _Part:
    """The first ``n`` cells of a run."""

    run: _Run
    n: int


@dataclass
class _Holder:
    """What a sequence holds, in order. The last part is the sequence's own run."""

    parts: list[_Part]
    reserved: int = 0

    @property
    def own(self) -> _Part:
        return self.parts[-1]

    @property
    def promised(self) -> int:
        return max(0, self.reserved - self.own.n)


class CellLedger:
    """Accounts cells before they are used: a native decode never finds the cache full.

    Sequences are named by their ids in the context. Cells shared by forks count once, until the
    last sequence that holds them is dropped.
    """

    def __init__(self, n_cells: int) -> None:
        self.n_cells = n_cells
        self._holders: dict[int, _Holder] = {}

    @property
    def used(self) -> int:
        # All holders of a run have a prefix of it, so the longest one has all.
        longest: dict[_Run, int] = {}
        for holder in self._holders.values():
            for part in holder.parts:
                longest[part.run] = max(part.n, longest.get(part.run, 0))
        return sum(longest.values())

    @property
    def reserved(self) -> int:
        """Cells promised and not used yet."""
        return sum(holder.promised for holder in self._holders.values())

    @property
    def answers(self) -> int:
        """Own cells of the sequences that have reserved some, promised ones included."""
        return sum(max(h.reserved, h.own.n) for h in self._holders.values() if h.reserved)

    @property
    def free(self) -> int:
        return self.n_cells - self.used - self.reserved

    def begin(self, sequence: int) -> None:
        """An empty sequence."""
        self._holders[sequence] = _Holder([_Part(_Run(), 0)])

    def fork(self, sequence: int, source: int, n: int) -> None:
        """A sequence that shares the first ``n`` cells of another one."""
        parts = []
        for part in self._holders[source].parts:
            shared = min(n, part.n)
            if shared:
                parts.append(_Part(part.run, shared))
            n -= shared
        self._holders[sequence] = _Holder([*parts, _Part(_Run(), 0)])

    def grow(self, sequence: int, n: int) -> None:
        """The sequence has ``n`` more cells of its own, or fewer when ``n`` is negative: never
        fewer than forks of it share."""
        self._holders[sequence].own.n += n

    def reserve(self, sequence: int, n: int) -> bool:
        """Promise the sequence ``n`` cells of its own, if so many are free."""
        if n > self.free:
            return False
        self._holders[sequence].reserved = n
        return True

    def drop(self, sequence: int) -> None:
        del self._holders[sequence]
