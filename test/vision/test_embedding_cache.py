from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vlm_ros.vision.embedding_cache import EmbeddingCache, EmbeddingKey
from edge_vlm_ros.vision.errors import CacheError


def key(number: int) -> EmbeddingKey:
    return EmbeddingKey(b"encoder", bytes([number]))


def rows(count: int, value: float = 0.0) -> np.ndarray:
    """``count`` x 4 bytes."""
    return np.full((count, 1), value, dtype=np.float32)


def test_hits_misses_and_read_only_arrays() -> None:
    cache = EmbeddingCache(4, 1000)
    assert cache.get(key(1)) is None
    stored = cache.put(key(1), rows(2, 7.0))
    found = cache.get(key(1))
    assert found is stored
    with pytest.raises(ValueError, match="read-only"):
        stored[0, 0] = 1.0
    assert cache.get(EmbeddingKey(b"another encoder", bytes([1]))) is None
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.entries, stats.bytes) == (1, 2, 1, 8)


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = EmbeddingCache(2, 1000)
    cache.put(key(1), rows(1))
    cache.put(key(2), rows(1))
    cache.get(key(1))
    cache.put(key(3), rows(1))
    assert key(1) in cache and key(3) in cache and key(2) not in cache
    assert cache.stats().evictions == 1


def test_bytes_limit() -> None:
    cache = EmbeddingCache(100, 40)
    cache.put(key(1), rows(5))
    cache.put(key(2), rows(5))
    cache.put(key(3), rows(6))
    assert [key(n) in cache for n in (1, 2, 3)] == [False, False, True]
    assert cache.stats().bytes == 24


def test_pins_are_counted_and_protect() -> None:
    cache = EmbeddingCache(1, 1000)
    cache.put(key(1), rows(1), pin=True)
    cache.pin(key(1))
    cache.put(key(2), rows(1))
    assert key(1) in cache and key(2) not in cache
    cache.unpin(key(1))
    cache.put(key(3), rows(1))
    assert key(1) in cache
    cache.unpin(key(1))
    cache.put(key(4), rows(1))
    assert key(1) not in cache and key(4) in cache


def test_pinned_entries_may_exceed_the_limits_and_it_shows() -> None:
    cache = EmbeddingCache(10, 10)
    cache.put(key(1), rows(2), pin=True)
    assert not cache.over_budget
    cache.put(key(2), rows(2), pin=True)
    assert cache.over_budget
    assert cache.stats().pinned_bytes == 16 and cache.stats().pinned_entries == 2
    cache.unpin(key(1))
    assert not cache.over_budget
    assert key(1) not in cache and key(2) in cache


def test_get_can_pin_in_the_same_step() -> None:
    cache = EmbeddingCache(1, 1000)
    assert cache.get(key(1), pin=True) is None
    cache.put(key(1), rows(1))
    assert cache.get(key(1), pin=True) is not None
    cache.put(key(2), rows(1))
    assert key(1) in cache


def test_putting_again_keeps_the_first_array_and_its_pins() -> None:
    cache = EmbeddingCache(2, 1000)
    first = cache.put(key(1), rows(1, 1.0), pin=True)
    assert cache.put(key(1), rows(3, 2.0)) is first
    assert cache.stats().bytes == 4 and cache.stats().pinned_entries == 1


def test_misuse_is_refused() -> None:
    cache = EmbeddingCache(2, 1000)
    with pytest.raises(CacheError, match="not in the cache"):
        cache.pin(key(1))
    cache.put(key(1), rows(1))
    with pytest.raises(CacheError, match="not pinned"):
        cache.unpin(key(1))
    with pytest.raises(CacheError, match="float32"):
        cache.put(key(2), np.zeros(3))
    with pytest.raises(CacheError, match=">= 0"):
        EmbeddingCache(-1, 5)


operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "put_pinned", "get", "get_pinned", "pin", "unpin"]),
        st.integers(0, 7),
        st.integers(1, 6),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(operations, st.integers(0, 5), st.integers(0, 60))
def test_limits_and_pins_hold_after_every_operation(steps, max_entries, max_bytes) -> None:
    cache = EmbeddingCache(max_entries, max_bytes)
    pins: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    lookups = 0
    for operation, number, size in steps:
        present = key(number) in cache
        if operation in ("put", "put_pinned"):
            pin = operation == "put_pinned"
            stored = cache.put(key(number), rows(size, number), pin=pin)
            assert (stored == number).all()
            sizes[number] = stored.nbytes
            pins[number] += pin
        elif operation in ("get", "get_pinned"):
            pin = operation == "get_pinned"
            found = cache.get(key(number), pin=pin)
            lookups += 1
            assert (found is not None) == present
            assert found is None or (found == number).all()
            pins[number] += pin and present
        elif operation == "pin":
            if present:
                cache.pin(key(number))
                pins[number] += 1
            else:
                with pytest.raises(CacheError):
                    cache.pin(key(number))
        elif pins[number] > 0:
            cache.unpin(key(number))
            pins[number] -= 1
        else:
            with pytest.raises(CacheError):
                cache.unpin(key(number))
        check_invariants(cache, pins, sizes)
    assert cache.stats().hits + cache.stats().misses == lookups


def check_invariants(cache: EmbeddingCache, pins: Counter[int], sizes: dict[int, int]) -> None:
    stats = cache.stats()
    present = [number for number in range(8) if key(number) in cache]
    pinned = [number for number in range(8) if pins[number] > 0]
    assert set(pinned) <= set(present)
    assert stats.entries == len(present) == len(cache)
    assert stats.bytes == sum(sizes[number] for number in present)
    assert stats.pinned_entries == len(pinned)
    assert stats.pinned_bytes == sum(sizes[number] for number in pinned)
    fits = stats.entries <= cache.max_entries and stats.bytes <= cache.max_bytes
    assert fits or present == pinned
    assert stats.over_budget == cache.over_budget == (not fits)


def test_many_threads_leave_the_books_balanced() -> None:
    cache = EmbeddingCache(4, 64)

    def work(seed: int) -> None:
        numbers = np.random.default_rng(seed).integers(0, 8, 300)
        for number in map(int, numbers):
            if cache.get(key(number), pin=True) is None:
                cache.put(key(number), rows(number + 1), pin=True)
            cache.unpin(key(number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = cache.stats()
    assert stats.pinned_entries == 0 and stats.pinned_bytes == 0
    assert stats.entries <= 4 and stats.bytes <= 64
    assert stats.bytes == sum(4 * (n + 1) for n in range(8) if key(n) in cache)
    assert stats.hits + stats.misses == 1200
