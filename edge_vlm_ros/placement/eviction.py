"""Which trunks go when an engine's cells are wanted for something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .residency import TrunkRecord


def victims(
    records: Iterable[TrunkRecord],
    cells_wanted: int,
    is_copy: Callable[[TrunkRecord], bool],
    may_go: Callable[[TrunkRecord], bool],
) -> list[TrunkRecord] | None:
    """The trunks to drop so that ``cells_wanted`` cells become free; None when that many cannot.

    Copies go before trunks that streams grow, of each the least recently used first. A trunk that
    an accepted question needs, and one that ``may_go`` refuses, never goes.
    """
    if cells_wanted <= 0:
        return []
    candidates = [r for r in records if not r.reserved and r.cells and may_go(r)]
    candidates.sort(key=lambda record: (not is_copy(record), record.last_use))
    chosen: list[TrunkRecord] = []
    freed = 0
    for record in candidates:
        chosen.append(record)
        freed += record.cells
        if freed >= cells_wanted:
            return chosen
    return None


def cut_ranges(tokens: list[int], longest: int) -> list[int]:
    """Indices of ``tokens`` (ascending ends of versions) at which to cut a range, first and last
    included: neighbours are as far apart as ``longest`` allows, but at least one version."""
    cuts = [0]
    for index in range(1, len(tokens)):
        last = index == len(tokens) - 1
        if len(cuts) > 1 and tokens[index] == tokens[cuts[-1]]:
            cuts[-1] = index  # a version without tokens belongs to the range before it
        elif last or tokens[index + 1] - tokens[cuts[-1]] > longest:
            cuts.append(index)
    return cuts
