"""The index of prefixes."""

from __future__ import annotations

from placement_helpers import end

from edge_vlm_ros.engines.protocol import TrunkId
from edge_vlm_ros.placement.prefix_index import PrefixIndex

A, B = TrunkId("a", 0, 1), TrunkId("b", 0, 2)


def filled(max_entries: int = 100) -> PrefixIndex:
    index = PrefixIndex(max_entries)
    for n, tokens in ((1, 3), (2, 10), (3, 20)):
        index.add("cpu", A, end(n, tokens).identity)
    index.add("gpu", B, end(4, 30).identity)
    return index


def test_the_longest_equal_prefix_is_found() -> None:
    index = filled()
    place = index.longest("cpu", [end(1, 3), end(2, 10), end(3, 21), end(4, 30)])
    assert place is not None and (place.trunk, place.stop) == (A, end(2, 10))
    assert (index.hits, index.misses) == (1, 0)


def test_other_engines_do_not_count() -> None:
    index = filled()
    assert index.longest("gpu", [end(1, 3), end(2, 10)]) is None
    place = index.longest("gpu", [end(4, 30)])
    assert place is not None and place.trunk == B
    assert (index.hits, index.misses) == (1, 1)


def test_the_first_miss_counts() -> None:
    index = PrefixIndex(10)
    assert index.longest("cpu", [end(1, 3)]) is None
    assert (index.hits, index.misses) == (0, 1)


def test_a_dropped_trunk_is_forgotten() -> None:
    index = filled()
    index.add("cpu", B, end(4, 30).identity)
    index.forget("cpu", A)
    assert index.longest("cpu", [end(2, 10), end(3, 20)]) is None
    place = index.longest("cpu", [end(4, 30)])
    assert place is not None and place.trunk == B
    assert len(index) == 2


def test_the_longest_version_of_equal_prefixes_is_taken() -> None:
    """A frame that could not be encoded adds a version and no tokens."""
    index = PrefixIndex(10)
    index.add("cpu", A, end(2, 10, "same").identity)
    place = index.longest("cpu", [end(2, 10, "same"), end(3, 10, "same")])
    assert place is not None and place.stop.n == 3


def test_the_least_recently_found_goes_first() -> None:
    index = filled(4)
    assert index.longest("cpu", [end(1, 3)]) is not None
    index.add("cpu", B, end(9, 90).identity)
    assert len(index) == 4
    assert index.longest("cpu", [end(2, 10)]) is None, "the oldest that nobody looked for"
    assert index.longest("cpu", [end(1, 3)]) is not None


def test_no_entries_allowed() -> None:
    index = filled(0)
    assert len(index) == 0 and index.longest("cpu", [end(1, 3)]) is None
