"""One native context: batches in, logits out, sequences forked and trimmed.

Synchronous and owned by one thread. It knows nothing of streams and answers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.history import Grid
from edge_vlm_ros.history.grid import N_SECTIONS, in_line

from . import native_log
from .batch import Batch
from .cell_map import CellMap, Placement, PositionRange
from .config import KvType
from .errors import (
    ComputeError,
    ContextError,
    DecodeAbortedError,
    ExportError,
    ImportRefusedError,
    InvalidBatchError,
    NativeAbortError,
    NoCellsError,
    WrongRangeError,
)
from .model import LlamaModel
from .native import Chunk, FramePart
from .scratch_sequence import ScratchSequence
from .state_blob import cell_positions, ggml_type, unread_cells

_logger = logging.getLogger(__name__)

LLAMA_MAX_SEQ = 256
"""Sequence ids of a unified cache must be below this: llama.cpp's compile-time constant."""

_MAX_GRAVES = 32


class LlamaContext:
    """A unified KV cache with ``n_ctx`` cells for ``n_seq_max`` sequences, the last of which is
    used by ``export_range`` and ``import_range``.

    Places in a sequence are counted in tokens. Where the embeddings of frames lie in a grid
    (M-RoPE), positions are others: the whole frame is at one, and the next token follows after as
    many as the grid's longer side. Such frames are forked, trimmed and moved as a whole.

    Cells of a sequence are kept in the order of their tokens (see cell_map), as far as there is
    room: ``unordered`` counts tokens for which there was none.

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
        model.check_memory(n_ctx, kv_type)
        n_graves = min(_MAX_GRAVES, LLAMA_MAX_SEQ - n_seq_max, n_ctx - n_seq_max)
        graves = range(n_seq_max, n_seq_max + n_graves)
        params = llama.llama_context_default_params()
        params.n_ctx = n_ctx
        # llama.cpp aborts the process when a batch cannot hold one row of every sequence.
        params.n_batch = params.n_ubatch = max(n_batch, graves.stop)
        params.n_seq_max = graves.stop
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = ggml_type(kv_type)
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.kv_unified = True
        params.op_offload = False  # never a CPU's work to a GPU
        params.offload_kqv = not model.device.is_cpu
        native_log.recent_errors()
        self._device = model.device
        self._device.reserve_context()
        self._handle = self._device.call(lambda: llama.llama_init_from_model(model.handle, params))
        if not self._handle:
            self._device.release_context()
            raise ContextError(
                f"no context with {n_ctx} cells and a {kv_type} KV cache can be made from "
                f"{model.path.name}: {native_log.recent_errors()}"
            )
        self._memory = llama.llama_get_memory(self._handle)
        self.n_ctx: int = llama.llama_n_ctx(self._handle)
        # llama.cpp aborts the process on a larger batch than this, which n_ctx limits too.
        self.n_batch = n_batch = llama.llama_n_batch(self._handle)
        self.kv_bytes = model.kv_bytes(self.n_ctx, kv_type)
        self._n_embd = model.n_embd_frame
        self._has_grids = model.has_grids
        self._last_sequence = n_seq_max - 1
        self._scratch = ScratchSequence(
            self._handle, self._last_sequence, self._wait, has_grids=model.has_grids
        )
        self._kv_rows = (kv_type, model.n_layer, model.n_embd_k, model.n_embd_v)
        self._batch = Batch(n_batch, N_SECTIONS if model.has_grids else 1)
        self._map = CellMap(self.n_ctx, graves)
        self.unordered = 0

    @property
    def handle(self) -> object:
        return self._handle

    def decode_tokens(
        self,
        tokens: Sequence[int],
        places: Sequence[int],
        sequences: Sequence[int],
        wants_logits: Sequence[bool],
    ) -> None:
        """Compute one batch of tokens, one row each, which go to these places in their sequences.

        Raises a DecodeError.
        """
        self._check(len(tokens))
        self._check_places(sequences, places)
        positions = [self._map.position(s, n) for s, n in zip(sequences, places, strict=True)]
        batch = self._batch.of_tokens(tokens, positions, sequences, wants_logits)
        self._decode(batch, sequences, positions)
        if not any(wants_logits):
            self._wait()

    def decode_embeddings(
        self,
        embeddings: NDArray[np.float32],
        first: int,
        sequence: int,
        row: int = 0,
        grid: Grid | None = None,
    ) -> None:
        """Compute rows of embeddings, float32 [n, n_embd] contiguous, at the places from ``first``
        on. With a ``grid`` they are the rows from ``row`` on of a frame. Raises a DecodeError.
        """
        self._check(len(embeddings))
        expected = (len(embeddings), self._n_embd)
        if embeddings.shape != expected or embeddings.dtype != np.float32:
            raise InvalidBatchError(
                f"embeddings {embeddings.dtype} {list(embeddings.shape)} do not fit the model, "
                f"which takes float32 {list(expected)}"
            )
        n = len(embeddings)
        sequences = [sequence] * n
        self._check_places(sequences, range(first, first + n))
        if grid is None:
            row = 0  # nothing hangs together
        positions = self._positions(n, first, sequence, row, grid)
        batch = self._batch.of_embeddings(embeddings, positions, sequence)
        self._decode(batch, sequences, positions[0].tolist(), first - row)
        if grid is not None and row + n == grid.n_tokens:
            begin = self._map.position(sequence, first - row)
            self._map.go_on_at(sequence, begin + grid.n_positions)
        self._wait()

    def _positions(
        self, n: int, first: int, sequence: int, row: int, grid: Grid | None
    ) -> NDArray[np.int32]:
        start = self._map.position(sequence, first - row)
        if grid is None:
            return in_line(start, n, N_SECTIONS if self._has_grids else 1)
        if not self._has_grids:
            raise InvalidBatchError("the model has no M-RoPE, so its frames lie in no grid")
        if not 0 <= row <= row + n <= grid.n_tokens:
            raise InvalidBatchError(
                f"rows {row} up to {row + n} of a frame are not in its grid {list(grid)}"
            )
        return grid.positions(start)[:, row : row + n]

    def extend(self, sequence: int, first: int, chunk: Chunk) -> None:
        """Compute token ids or embeddings at the end of a sequence, without logits.

        Raises a DecodeError. If that happens within a frame that lies in a grid, all of the frame
        is removed.
        """
        if isinstance(chunk, FramePart):
            self.decode_embeddings(chunk.embeddings, first, sequence, chunk.first, chunk.grid)
            return
        n = len(chunk)
        self.decode_tokens(chunk, range(first, first + n), [sequence] * n, [False] * n)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Let ``target`` share the first ``n_tokens`` tokens of ``source``: no copying."""
        self._check_cut(source, n_tokens)
        end = self._map.position(source, n_tokens)
        llama.llama_memory_seq_cp(self._memory, source, target, 0, end)
        self._map.fork(source, target, n_tokens)

    def trim(self, sequence: int, first: int = 0) -> None:
        """Remove the tokens from place ``first`` on; cells can be used again when their last user
        has removed them."""
        self._check_cut(sequence, first)
        position = self._map.position(sequence, first) if first else 0
        burial = self._map.trim(sequence, first)
        self._free(burial.exhumed)
        for dead in burial.buried:
            llama.llama_memory_seq_cp(self._memory, sequence, burial.grave, dead.start, dead.stop)
        self._remove(PositionRange(sequence, position, -1))

    def _check_cut(self, sequence: int, n_tokens: int) -> None:
        if self._map.is_cut(sequence, n_tokens):
            raise ValueError(f"place {n_tokens} is within a frame: its tokens share one position")

    def _free(self, ranges: Iterable[PositionRange]) -> None:
        for removed in ranges:
            self._remove(removed)

    def _remove(self, removed: PositionRange) -> None:
        llama.llama_memory_seq_rm(self._memory, removed.sequence, removed.start, removed.stop)

    def _place(self, sequences: Sequence[int]) -> Sequence[int]:
        """Make the cells that the next tokens of ``sequences`` are to get the lowest free ones.

        Raises NoCellsError.
        """
        placement = self._choose(sequences)
        if placement is not None and not placement.ordered and len(set(sequences)) == 1:
            if self._map.is_alone(sequences[0]):
                self._move_down(sequences[0])
                placement = self._choose(sequences)
        if placement is None:
            raise NoCellsError(f"no free KV cells for {len(sequences)} rows")
        self._free(placement.exhumed)
        if not placement.ordered:
            self.unordered += len(sequences)
        return placement.cells

    def _choose(self, sequences: Sequence[int]) -> Placement | None:
        """A placement in cells of which each can be had alone."""
        while True:
            if self._has_grids:
                self._bury_loose()
            placement = self._map.place(sequences)
            together = self._map.split(placement.cells) if placement else ()
            if not together:
                return placement
            self._free(together)

    def _move_down(self, sequence: int) -> None:
        """Put a sequence that has come to the end of the cache into the lowest cells."""
        n = len(self._map.cells(sequence))
        if n:
            next_position = self.next_position(sequence)
            blob = self.export_range(sequence, 0, n)
            self.trim(sequence)
            self.import_range(blob, sequence, 0, n, next_position)

    def export_range(self, sequence: int, start: int, stop: int) -> NDArray[np.uint8]:
        """Copy the KV of the tokens ``start`` .. ``stop`` - 1 of a sequence to host memory.

        Returns llama.cpp's state blob, uint8 [n_bytes]. Raises ExportError.
        """
        if self._map.is_cut(sequence, start) or self._map.is_cut(sequence, stop):
            raise ExportError(f"the range {start} to {stop} would cut a frame")
        first, end = (self._map.position(sequence, place) for place in (start, stop))
        return self._scratch.export(PositionRange(sequence, first, end))

    def import_range(
        self,
        blob: NDArray[np.uint8],
        sequence: int,
        start: int,
        stop: int,
        next_position: int | None = None,
    ) -> None:
        """Extend a sequence that ends before ``start`` by the tokens ``start`` .. ``stop`` - 1
        from a state blob, uint8 [n_bytes] contiguous. What follows goes to ``next_position``; when
        not given, every token takes one.

        The blob must have been checked: a wrong one may abort the process. Raises
        WrongRangeError when the sequence ends elsewhere, ImportRefusedError when llama.cpp takes
        not exactly this range; the sequence is untouched then.
        """
        end = len(self._map.cells(sequence))
        if end != start:
            raise WrongRangeError(f"a range from {start} on does not follow {end} tokens")
        if start == stop:
            return
        n, first = stop - start, self.next_position(sequence)
        sequences = [sequence] * n
        at = PositionRange(sequence, first, first + n if next_position is None else next_position)
        try:
            cells = self._place(sequences)
        except NoCellsError as error:
            text = f"the positions {at.start} to {at.stop} cannot be imported: {error}"
            raise ImportRefusedError(text) from error
        try:
            self._scratch.import_(blob, at, n)
        except ImportRefusedError:
            self._map.lose(cells)
            raise
        positions = cell_positions(blob, has_grids=self._has_grids)
        in_order = np.argsort(positions, kind="stable")
        self._map.hold(sequences, np.array(cells)[in_order].tolist(), positions[in_order].tolist())
        self._map.go_on_at(sequence, at.stop)

    def _bury_loose(self) -> None:
        """Fill the cells that are free below others with what nobody will read, each at a position
        of its own."""
        room = self._map.room_for_loose()
        if room is None:
            return
        blob = unread_cells(np.arange(room.start, room.stop, dtype=np.int32), *self._kv_rows)
        try:
            self._scratch.import_(blob, room, room.stop - room.start)
            self._map.bury_loose(room)
        except ImportRefusedError as error:
            _logger.warning("%d KV cells are free out of order: %s", room.stop - room.start, error)

    def next_position(self, sequence: int) -> int:
        """The position of the next token of a sequence; 0 when it is empty."""
        return self._map.position(sequence, len(self._map.cells(sequence)))

    def close(self) -> None:
        """Free the context. Closing again changes nothing.

        On a device that is lost it is abandoned: freeing it would never return.
        """
        handle, self._handle = self._handle, None
        if handle is not None and not self._device.is_lost():
            with contextlib.suppress(NativeAbortError):  # lost in this very moment
                self._device.call(lambda: llama.llama_free(handle))
                self._device.release_context()

    def _check(self, n: int) -> None:
        if not 0 < n <= self.n_batch:
            raise InvalidBatchError(f"a batch of {n} rows: between 1 and {self.n_batch} are taken")

    def _decode(
        self,
        batch: llama.llama_batch,
        sequences: Sequence[int],
        positions: Sequence[int],
        begin: int | None = None,
    ) -> None:
        """``begin`` is the place in its sequence of the frame that the rows belong to."""
        cells = self._place(sequences)
        code = llama.llama_decode(self._handle, batch)
        if code == 0:
            self._map.hold(sequences, cells, positions)
            return
        text = f"{batch.n_tokens} rows (native code {code}): {native_log.recent_errors()}"
        for sequence in set(sequences):  # what was computed of them, if anything
            held = len(self._map.cells(sequence)) if begin is None else begin
            self._remove(PositionRange(sequence, self._map.position(sequence, held), -1))
        self._map.lose(cells)
        if begin is not None:  # earlier rows of the frame were at the same position
            self._free(self._map.lose_tail(sequences[0], begin))
        if code == 1:
            raise NoCellsError(f"no free KV cells for {text}")
        if code == 2:
            raise DecodeAbortedError(f"aborted while computing {text}")
        if code == -1:
            raise InvalidBatchError(f"llama.cpp refused {text}")
        raise ComputeError(f"the backend failed on {text}")

    def _wait(self) -> None:
        """Until what was told is computed. Reading logits waits by itself; without it a device
        would queue chunk after chunk, and the next answer's step would wait for all of them."""
        llama.llama_synchronize(self._handle)
        self._device.wait_for_server()

    def _check_places(self, sequences: Sequence[int], places: Sequence[int]) -> None:
        ends: dict[int, int] = {}
        for sequence, place in zip(sequences, places, strict=True):
            if not 0 <= sequence <= self._last_sequence:
                raise InvalidBatchError(
                    f"there is no sequence {sequence}: the last is {self._last_sequence}"
                )
            end = ends.get(sequence, len(self._map.cells(sequence)))
            if place != end:
                raise InvalidBatchError(
                    f"place {place} does not follow the {end} tokens of its sequence"
                )
            ends[sequence] = end + 1
