"""Exported KV in host memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from placement_helpers import end

from edge_vlm_ros.engines.protocol import Boundary
from edge_vlm_ros.engines.snapshot import Layout, Snapshot, SnapshotHeader
from edge_vlm_ros.placement.snapshot_cache import SnapshotCache

LAYOUT = Layout("qwen3", b"m" * 32, "q8_0", True, True, 4, 64, 64, 2, 1e6, 1.0)
ENDS = [end(0, 0), end(1, 3), end(2, 10), end(3, 20)]


def snapshot(start: Boundary, stop: Boundary, n_bytes: int = 10) -> Snapshot:
    header = SnapshotHeader(
        LAYOUT,
        start.tokens,
        stop.tokens,
        start.positions,
        stop.positions,
        start.identity,
        stop.identity,
    )
    return Snapshot(header, np.zeros(n_bytes, np.uint8), 0)


def test_chains_follow_one_another_as_far_as_they_go() -> None:
    cache = SnapshotCache(10, 1000)
    first, second = snapshot(ENDS[0], ENDS[2]), snapshot(ENDS[2], ENDS[3])
    cache.put(second)
    assert cache.chain(LAYOUT, ENDS) == []
    cache.put(first)
    assert cache.chain(LAYOUT, ENDS) == [first, second]
    assert cache.chain(LAYOUT, ENDS[:3]) == [first]
    assert cache.chain(LAYOUT, ENDS[1:]) == []
    assert cache.chain(LAYOUT, ENDS[2:]) == [second]
    assert (cache.hits, cache.misses) == (3, 2)


def test_the_longest_range_is_preferred() -> None:
    cache = SnapshotCache(10, 1000)
    whole = snapshot(ENDS[0], ENDS[3])
    for one in (snapshot(ENDS[0], ENDS[1]), whole):
        cache.put(one)
    assert cache.chain(LAYOUT, ENDS) == [whole]


def test_other_beginnings_are_tried_in_order_and_count_once() -> None:
    cache = SnapshotCache(10, 1000)
    whole = snapshot(ENDS[0], ENDS[2])
    cache.put(whole)
    assert cache.chain(LAYOUT, ENDS[1:], ENDS) == [whole]
    assert cache.chain(LAYOUT, ENDS[1:], ENDS[2:]) == []
    assert (cache.hits, cache.misses) == (1, 1)


def test_another_layout_or_history_finds_nothing() -> None:
    cache = SnapshotCache(10, 1000)
    cache.put(snapshot(ENDS[0], ENDS[1]))
    assert cache.chain(replace(LAYOUT, kv_type="f16"), ENDS[:2]) == []
    assert cache.chain(LAYOUT, [ENDS[0], end(1, 3, "another")]) == []


def test_entries_and_bytes_are_bounded() -> None:
    cache = SnapshotCache(2, 25)
    one, two, three = (snapshot(ENDS[i], ENDS[i + 1]) for i in range(3))
    cache.put(one)
    cache.put(two)
    assert cache.chain(LAYOUT, ENDS[:2]) == [one]
    cache.put(three)
    assert (len(cache), cache.n_bytes, cache.evictions) == (2, 20, 1)
    assert cache.chain(LAYOUT, ENDS[1:3]) == [], "the least recently used is gone"
    cache.put(snapshot(ENDS[0], ENDS[3], 20))
    assert (len(cache), cache.n_bytes, cache.evictions) == (1, 20, 3)
    cache.put(snapshot(ENDS[1], ENDS[3], 26))
    assert (len(cache), cache.n_bytes) == (1, 20), "larger than everything allowed: not kept"


def test_what_is_there_is_not_stored_twice() -> None:
    cache = SnapshotCache(5, 100)
    one = snapshot(ENDS[0], ENDS[1])
    cache.put(one)
    cache.put(snapshot(ENDS[0], ENDS[1]))
    assert (len(cache), cache.n_bytes) == (1, 10)
    assert cache.chain(LAYOUT, ENDS[:2]) == [one]


def test_nothing_is_kept_when_nothing_may_be() -> None:
    for cache in (SnapshotCache(0, 100), SnapshotCache(5, 0)):
        cache.put(snapshot(ENDS[0], ENDS[1]))
        assert len(cache) == 0 == cache.n_bytes
