"""Exported KV in host memory, within limits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from edge_vlm_ros.engines.protocol import Boundary
from edge_vlm_ros.engines.snapshot import Layout, Snapshot

_Key = tuple[bytes, bytes, bytes]


class SnapshotCache:
    """Snapshots by layout and the prefix identities at both ends, least recently used go first.

    A command that carries a snapshot keeps its memory until it is carried out, evicted or not.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.hits = self.misses = self.evictions = 0
        self._snapshots: OrderedDict[_Key, Snapshot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._snapshots)

    def put(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, unless it is larger than everything allowed."""
        header = snapshot.header
        key = (header.layout.fingerprint, header.start_identity, header.stop_identity)
        if key in self._snapshots:
            self._snapshots.move_to_end(key)
            return
        if snapshot.n_bytes > self.max_bytes or not self.max_entries:
            return
        self._snapshots[key] = snapshot
        self.n_bytes += snapshot.n_bytes
        while len(self._snapshots) > self.max_entries or self.n_bytes > self.max_bytes:
            _, evicted = self._snapshots.popitem(last=False)
            self.n_bytes -= evicted.n_bytes
            self.evictions += 1

    def chain(self, layout: Layout, *wanted: Sequence[Boundary]) -> list[Snapshot]:
        """Snapshots that follow one another from the first of ``wanted`` as far as they go.

        ``wanted`` are the ends of consecutive versions; where nothing is found for the first such
        list the next one is tried. Counts one hit or one miss.
        """
        for ends in wanted:
            found = self._chain(layout, ends)
            if found:
                self.hits += 1
                return found
        self.misses += 1
        return []

    def reach(self, layout: Layout, wanted: Sequence[Boundary]) -> Boundary:
        """How far ``chain`` would come from the first of ``wanted``; counts and changes nothing."""
        if not self._snapshots:
            return wanted[0]
        return wanted[max((stop for stop, _ in self._links(layout, wanted)), default=0)]

    def _chain(self, layout: Layout, ends: Sequence[Boundary]) -> list[Snapshot]:
        found = []
        for _, key in list(self._links(layout, ends)):
            self._snapshots.move_to_end(key)
            found.append(self._snapshots[key])
        return found

    def _links(self, layout: Layout, ends: Sequence[Boundary]) -> Iterator[tuple[int, _Key]]:
        """Index of the end of each link and its key, the longest link first at every place."""
        at, fingerprint = 0, layout.fingerprint
        while at < len(ends) - 1:
            keys = (
                (stop, (fingerprint, ends[at].identity, ends[stop].identity))
                for stop in range(len(ends) - 1, at, -1)
            )
            longest = next(((stop, key) for stop, key in keys if key in self._snapshots), None)
            if longest is None:
                return
            yield longest
            at = longest[0]
