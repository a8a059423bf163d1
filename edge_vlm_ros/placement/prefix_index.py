"""Which engines hold which prefixes, whatever streams they are of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from edge_vlm_ros.engines.protocol import Boundary, TrunkId


class PrefixPlace(NamedTuple):
    """A trunk that holds a prefix; ``stop`` is the end that was looked for."""

    trunk: TrunkId
    stop: Boundary


class PrefixIndex:
    """Prefix identity -> a trunk that holds it, for each engine. At most ``max_entries``; the least
    recently found or added is forgotten first, which costs reuse and nothing else."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self.hits = self.misses = 0
        self._trunks: OrderedDict[tuple[str, bytes], TrunkId] = OrderedDict()

    def __len__(self) -> int:
        return len(self._trunks)

    def add(self, engine: str, trunk: TrunkId, identity: bytes) -> None:
        """The first trunk to hold a prefix stays the one that is found."""
        self._trunks.setdefault((engine, identity), trunk)
        self._trunks.move_to_end((engine, identity))
        while len(self._trunks) > self.max_entries:
            self._trunks.popitem(last=False)

    def forget(self, engine: str, trunk: TrunkId) -> None:
        """The engine does not hold the trunk any more."""
        for key in [k for k, t in self._trunks.items() if (k[0], t) == (engine, trunk)]:
            del self._trunks[key]

    def longest(self, engine: str, wanted: Iterable[Boundary]) -> PrefixPlace | None:
        """A trunk on ``engine`` with the longest of the ``wanted`` prefixes; counts a hit or a
        miss, the first time too."""
        for stop in sorted(wanted, key=lambda b: (b.tokens, b.n), reverse=True):
            trunk = self._trunks.get((engine, stop.identity))
            if trunk is not None:
                self.hits += 1
                self._trunks.move_to_end((engine, stop.identity))
                return PrefixPlace(trunk, stop)
        self.misses += 1
        return None
