"""The native sequence through which KV leaves a cache and comes in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from . import native_log
from .cell_map import PositionRange
from .errors import ExportError, ImportRefusedError
from .state_blob import cell_positions


class ScratchSequence:
    """Empty between the calls. llama.cpp exports whole sequences only; an import replaces what its
    sequence has, and wipes it when it fails.

    ``wait`` returns when the device has done what it was told; ``has_grids`` as in LlamaModel.
    """

    def __init__(
        self, context: object, sequence: int, wait: Callable[[], None], *, has_grids: bool
    ) -> None:
        self._context, self._sequence, self._wait = context, sequence, wait
        self._memory = llama.llama_get_memory(context)
        self._has_grids = has_grids

    def export(self, source: PositionRange) -> NDArray[np.uint8]:
        """llama.cpp's state blob of a range, uint8 [n_bytes]. Raises ExportError."""
        try:
            llama.llama_memory_seq_cp(self._memory, source.sequence, self._sequence, *source[1:])
            n = llama.llama_state_seq_get_size_ext(self._context, self._sequence, 0)
            blob = np.empty(n, np.uint8)
            written = llama.llama_state_seq_get_data_ext(
                self._context, _bytes_pointer(blob), n, self._sequence, 0
            )
        finally:
            self._clear()
        if not 0 < written == n:
            raise ExportError(
                f"llama.cpp exported {written} of {n} bytes of the positions {source.start} to "
                f"{source.stop}: {native_log.recent_errors()}"
            )
        return blob

    def import_(self, blob: NDArray[np.uint8], target: PositionRange, n_cells: int) -> None:
        """Add ``n_cells`` cells from a blob, uint8 [n_bytes] contiguous, to a sequence.

        Raises ImportRefusedError when llama.cpp takes not exactly this range; the sequence is
        untouched then.
        """
        try:
            self._read(blob, target, n_cells)
            self._wait()
            llama.llama_memory_seq_cp(self._memory, self._sequence, target.sequence, -1, -1)
        finally:
            self._clear()

    def _read(self, blob: NDArray[np.uint8], at: PositionRange, n_cells: int) -> None:
        native_log.recent_errors()
        read = llama.llama_state_seq_set_data_ext(
            self._context, _bytes_pointer(blob), blob.nbytes, self._sequence, 0
        )
        if read != blob.nbytes:
            raise ImportRefusedError(
                f"llama.cpp refused the state of the positions {at.start} to {at.stop} (are there "
                f"as many free cells?): {native_log.recent_errors()}"
            )
        first = llama.llama_memory_seq_pos_min(self._memory, self._sequence)
        end = llama.llama_memory_seq_pos_max(self._memory, self._sequence) + 1
        n = llama.llama_state_seq_get_size_ext(self._context, self._sequence, 0)
        n_found = len(cell_positions(blob, has_grids=self._has_grids))
        # A frame in a grid has no cell at its later positions.
        is_whole = end == at.stop or (self._has_grids and end < at.stop)
        if first != at.start or not is_whole or (n, n_found) != (blob.nbytes, n_cells):
            raise ImportRefusedError(
                f"llama.cpp imported the positions {first} to {end} ({n} bytes) from a state of "
                f"{at.start} to {at.stop} ({blob.nbytes} bytes)"
            )

    def _clear(self) -> None:
        llama.llama_memory_seq_rm(self._memory, self._sequence, 0, -1)


def _bytes_pointer(blob: NDArray[np.uint8]) -> Any:
    return blob.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
