"""The rows of one native decode call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray


class Batch:
    """Buffers for up to ``capacity`` rows, filled anew for every call. A row of embeddings has
    ``n_sections`` positions, a token one.

    The structures that llama.cpp reads point into the buffers for good: setting them up costs as
    much Python time as all the rest of a decode step.
    """

    def __init__(self, capacity: int, n_sections: int = 1) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(n_sections * capacity, np.int32)
        self._sequences = np.zeros(capacity, np.int32)
        self._wants_logits = np.zeros(capacity, np.int8)
        self._one_sequence = np.ones(capacity, np.int32)
        self._of_tokens = self._structure()
        self._of_tokens.token = _pointer(self._tokens, llama.llama_token)
        self._of_embeddings = self._structure()

    def of_tokens(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        wants_logits: Sequence[bool],
    ) -> llama.llama_batch:
        """One row per token; valid until the next call."""
        n = len(tokens)
        self._tokens[:n] = tokens
        self._positions[:n] = positions
        self._sequences[:n] = sequences
        self._wants_logits[:n] = wants_logits
        self._of_tokens.n_tokens = n
        return self._of_tokens

    def of_embeddings(
        self, embeddings: NDArray[np.float32], positions: NDArray[np.int32], sequence: int
    ) -> llama.llama_batch:
        """One row per embedding with positions int32 [n_sections, n], no logits; valid until the
        next call and while ``embeddings`` lives."""
        n = len(embeddings)
        self._positions[: positions.size] = positions.ravel()
        self._sequences[:n] = sequence
        self._wants_logits[:n] = 0
        self._of_embeddings.embd = _pointer(embeddings, ctypes.c_float)
        self._of_embeddings.n_tokens = n
        return self._of_embeddings

    def _structure(self) -> llama.llama_batch:
        batch = llama.llama_batch()
        batch.pos = _pointer(self._positions, llama.llama_pos)
        batch.n_seq_id = _pointer(self._one_sequence, ctypes.c_int32)
        batch.seq_id = _pointers_to_each(self._sequences)
        batch.logits = _pointer(self._wants_logits, ctypes.c_int8)
        return batch


def _pointer(values: NDArray[Any], element: Any) -> Any:
    return values.ctypes.data_as(ctypes.POINTER(element))


def _pointers_to_each(values: NDArray[np.int32]) -> Any:
    """A C array of pointers, one to each element: the shape of ``llama_batch.seq_id``."""
    pointer = ctypes.POINTER(llama.llama_seq_id)
    base = values.ctypes.data
    addresses = (ctypes.cast(base + i * values.itemsize, pointer) for i in range(len(values)))
    return (pointer * len(values))(*addresses)
