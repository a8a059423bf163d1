"""Embeddings of frames, kept while they are needed and, within limits, for when they come again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .encoder import Embeddings
from .errors import CacheError


class EmbeddingKey(NamedTuple):
    """Equal keys mean the same computation: same encoder, same preprocessed pixels."""

    encoder: bytes
    pixels: bytes


@dataclass(frozen=True)
class CacheStats:
    """Counters of a cache at one moment. Bytes count the arrays only."""

    hits: int
    misses: int
    evictions: int
    entries: int
    bytes: int
    pinned_entries: int
    pinned_bytes: int
    over_budget: bool


@dataclass
class _Entry:
    array: Embeddings
    pins: int = 0


class EmbeddingCache:
    """Least-recently-used cache of embeddings with entry and byte limits, and pins.

    A pinned entry is never evicted. Whatever is not pinned fits into the limits at all times;
    when the pinned entries alone exceed them they stay (somebody needs them), nothing else does,
    and ``over_budget`` is True. All methods may be called from any thread.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        """Make an empty cache.

        Args:
            max_entries: most entries kept; 0 keeps only what is pinned.
            max_bytes: most bytes kept; 0 keeps only what is pinned.

        Raises:
            CacheError: a negative limit.
        """
        if max_entries < 0 or max_bytes < 0:
            raise CacheError(
                f"cache limits must be >= 0, not max_entries={max_entries}, max_bytes={max_bytes}"
            )
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[EmbeddingKey, _Entry] = OrderedDict()
        self._bytes = 0
        self._pinned_entries = 0
        self._pinned_bytes = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0

    def get(self, key: EmbeddingKey, *, pin: bool = False) -> Embeddings | None:
        """Look a key up and count a hit or a miss.

        Args:
            key: what to look for.
            pin: also pin the entry when it is there, in the same step.

        Returns:
            The read-only float32 array, or None.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            if pin:
                self._pin(entry)
            return entry.array

    def put(self, key: EmbeddingKey, array: Embeddings, *, pin: bool = False) -> Embeddings:
        """Store an array. The array becomes read-only; an entry that is there already stays.

        Args:
            key: where to store it.
            array: float32 of any shape, owned by the cache from now on.
            pin: also pin the entry, in the same step (without it the entry may be evicted before
                the caller gets to pin it).

        Returns:
            The read-only array that is stored under the key.

        Raises:
            CacheError: an array of another dtype.
        """
        if array.dtype != np.float32:
            raise CacheError(f"the cache holds float32 embeddings, not {array.dtype}")
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                array.setflags(write=False)
                entry = self._entries[key] = _Entry(array)
                self._bytes += array.nbytes
            self._entries.move_to_end(key)
            if pin:
                self._pin(entry)
            self._evict()
            return entry.array

    def pin(self, key: EmbeddingKey) -> None:
        """Keep an entry until ``unpin`` has been called as often as ``pin``.

        Raises:
            CacheError: there is no such entry.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                raise CacheError("cannot pin embeddings that are not in the cache")
            self._pin(entry)

    def unpin(self, key: EmbeddingKey) -> None:
        """Take back one pin. An entry without pins may be evicted.

        Raises:
            CacheError: there is no such entry, or it is not pinned.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.pins == 0:
                raise CacheError("cannot unpin embeddings that are not pinned")
            entry.pins -= 1
            if entry.pins == 0:
                self._pinned_entries -= 1
                self._pinned_bytes -= entry.array.nbytes
                self._evict()

    def stats(self) -> CacheStats:
        """All counters, taken at one moment."""
        with self._lock:
            return CacheStats(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                entries=len(self._entries),
                bytes=self._bytes,
                pinned_entries=self._pinned_entries,
                pinned_bytes=self._pinned_bytes,
                over_budget=self._exceeds(),
            )

    @property
    def over_budget(self) -> bool:
        """True when the pinned entries alone exceed a limit."""
        with self._lock:
            return self._exceeds()

    def __contains__(self, key: EmbeddingKey) -> bool:
        """Whether a key is stored; counts nothing and does not touch the eviction order."""
        with self._lock:
            return key in self._entries

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def _pin(self, entry: _Entry) -> None:
        if entry.pins == 0:
            self._pinned_entries += 1
            self._pinned_bytes += entry.array.nbytes
        entry.pins += 1

    def _exceeds(self) -> bool:
        return len(self._entries) > self.max_entries or self._bytes > self.max_bytes

    def _evict(self) -> None:
        if not self._exceeds():
            return
        for key in [key for key, entry in self._entries.items() if entry.pins == 0]:
            self._bytes -= self._entries.pop(key).array.nbytes
            self._evictions += 1
            if not self._exceeds():
                return
