"""One native context: batches in, logits out, sequences forked and trimmed.

Synchronous and owned by one thread. It knows nothing of streams and answers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from . import native_log
from .config import KvType
from .errors import (
    ComputeError,
    ContextError,
    DecodeAbortedError,
    InvalidBatchError,
    NoCellsError,
)
from .model import LlamaModel

LLAMA_MAX_SEQ = 256
"""Sequence ids of a unified cache must be below this: llama.cpp's compile-time constant."""

# enum ggml_type; the binding does not name all of them
_GGML_TYPE = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
_BYTES_PER_ELEMENT = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}


class LlamaContext:
    """A unified KV cache with ``n_ctx`` cells for ``n_seq_max`` sequences.

    Flash attention and equal K and V types are pinned, as are equal thread counts for batches of
    every size: an automatic choice on either could differ from another engine's. Raises
    ContextError.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        kv_type: KvType,
        n_threads: int,
    ) -> None:
        if n_seq_max > LLAMA_MAX_SEQ:
            raise ContextError(
                f"{n_seq_max} sequences are needed, llama.cpp has {LLAMA_MAX_SEQ}: configure "
                "fewer streams or pending questions"
            )
        if n_ctx < n_seq_max:
            raise ContextError(f"{n_ctx} cells are too few for {n_seq_max} sequences: raise n_ctx")
        params = llama.llama_context_default_params()
        params.n_ctx = n_ctx
        # llama.cpp aborts the process when a batch cannot hold one row of every sequence.
        params.n_batch = params.n_ubatch = max(n_batch, n_seq_max)
        params.n_seq_max = n_seq_max
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = _GGML_TYPE[kv_type]
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.kv_unified = True
        params.op_offload = False
        params.offload_kqv = False
        native_log.recent_errors()
        self._handle = llama.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise ContextError(
                f"no context with {n_ctx} cells and a {kv_type} KV cache can be made from "
                f"{model.path.name}: {native_log.recent_errors()}"
            )
        self._memory = llama.llama_get_memory(self._handle)
        self.n_ctx: int = llama.llama_n_ctx(self._handle)
        # llama.cpp aborts the process on a larger batch than this, which n_ctx limits too.
        self.n_batch = n_batch = llama.llama_n_batch(self._handle)
        self.kv_bytes = _kv_bytes(model, self.n_ctx, kv_type)
        self._n_embd = model.n_embd
        self._tokens = np.zeros(n_batch, np.int32)
        self._positions = np.zeros(n_batch, np.int32)
        self._sequences = np.zeros(n_batch, np.int32)
        self._one_sequence = np.ones(n_batch, np.int32)
        self._wants_logits = np.zeros(n_batch, np.int8)
        self._sequence_pointers = _pointers_to_each(self._sequences)

    @property
    def handle(self) -> object:
        return self._handle

    def decode_tokens(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        wants_logits: Sequence[bool],
    ) -> None:
        """Compute one batch of tokens, one row each. Raises a DecodeError."""
        n = self._checked(len(tokens))
        self._tokens[:n] = tokens
        self._positions[:n] = positions
        self._sequences[:n] = sequences
        self._wants_logits[:n] = wants_logits
        batch = self._batch(n)
        batch.token = self._tokens.ctypes.data_as(ctypes.POINTER(llama.llama_token))
        self._decode(batch)

    def decode_embeddings(
        self, embeddings: NDArray[np.float32], first_position: int, sequence: int
    ) -> None:
        """Compute rows of embeddings, float32 [n, n_embd] contiguous, at consecutive positions.

        Raises a DecodeError.
        """
        n = self._checked(len(embeddings))
        expected = (n, self._n_embd)
        if embeddings.shape != expected or embeddings.dtype != np.float32:
            raise InvalidBatchError(
                f"embeddings {embeddings.dtype} {list(embeddings.shape)} do not fit the model, "
                f"which takes float32 {list(expected)}"
            )
        self._positions[:n] = np.arange(first_position, first_position + n)
        self._sequences[:n] = sequence
        self._wants_logits[:n] = 0
        batch = self._batch(n)
        batch.embd = embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._decode(batch)

    def fork(self, source: int, target: int, n_positions: int) -> None:
        """Let ``target`` share the first ``n_positions`` positions of ``source``: no copying."""
        llama.llama_memory_seq_cp(self._memory, source, target, 0, n_positions)

    def trim(self, sequence: int, first_position: int = 0) -> None:
        """Remove the positions from ``first_position`` on; cells free up with their last user."""
        llama.llama_memory_seq_rm(self._memory, sequence, first_position, -1)

    def next_position(self, sequence: int) -> int:
        """One after the last position of a sequence; 0 when it is empty."""
        return int(llama.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def close(self) -> None:
        """Free the context. Closing again changes nothing."""
        handle, self._handle = self._handle, None
        llama.llama_free(handle)

    def _checked(self, n: int) -> int:
        if not 0 < n <= self.n_batch:
            raise InvalidBatchError(f"a batch of {n} rows: between 1 and {self.n_batch} are taken")
        return n

    def _batch(self, n: int) -> llama.llama_batch:
        batch = llama.llama_batch()
        batch.n_tokens = n
        batch.pos = self._positions.ctypes.data_as(ctypes.POINTER(llama.llama_pos))
        batch.n_seq_id = self._one_sequence.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = self._sequence_pointers
        batch.logits = self._wants_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        return batch

    def _decode(self, batch: llama.llama_batch) -> None:
        code = llama.llama_decode(self._handle, batch)
        if code == 0:
            return
        text = f"{batch.n_tokens} rows (native code {code}): {native_log.recent_errors()}"
        if code == 1:
            raise NoCellsError(f"no free KV cells for {text}")
        if code == 2:
            raise DecodeAbortedError(f"aborted while computing {text}")
        if code == -1:
            raise InvalidBatchError(f"llama.cpp refused {text}")
        raise ComputeError(f"the backend failed on {text}")


def _pointers_to_each(values: NDArray[np.int32]) -> ctypes.Array[Any]:
    """A C array of pointers, one to each element: the shape of ``llama_batch.seq_id``."""
    pointer = ctypes.POINTER(llama.llama_seq_id)
    base = values.ctypes.data
    addresses = (ctypes.cast(base + i * values.itemsize, pointer) for i in range(len(values)))
    array: ctypes.Array[Any] = (pointer * len(values))(*addresses)
    return array


def _kv_bytes(model: LlamaModel, n_ctx: int, kv_type: KvType) -> int:
    """Size of the cache from the model's geometry: K and V rows of all KV heads, every layer."""
    n_layer = llama.llama_model_n_layer(model.handle)
    n_head = llama.llama_model_n_head(model.handle)
    n_head_kv = llama.llama_model_n_head_kv(model.handle)
    arch = model.metadata("general.architecture")
    head_dim = int(model.metadata(f"{arch}.attention.key_length") or model.n_embd // n_head)
    row = n_head_kv * head_dim * _BYTES_PER_ELEMENT[kv_type]
    return int(2 * n_layer * n_ctx * row)
