"""llama.cpp's state blob of one sequence, read in Python: its cells, and their K and V rows.

llama.cpp reads a blob while it changes the cache; a blob that lies is to be refused before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import BlobError, OtherFlashAttentionError

_MAGIC = 0xAF143CD8
_GGML_TYPE_SIZE = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q8_0": (8, 32, 34), "bf16": (30, 1, 2)}
"""enum ggml_type, values per block, bytes per block."""
_CELL = np.dtype([("position", "<i4"), ("n_sequences", "<u4"), ("sequence", "<i4")])

Rows = NDArray[np.uint8]
"""One row per cell, uint8 [n_cells, row bytes]."""


@dataclass(frozen=True, eq=False)
class StateBlob:
    """Cells in the order of the blob, which is not that of their positions in general."""

    positions: NDArray[np.int32]
    ggml_type: int | None
    """Of all rows; None when there are no cells."""
    keys: tuple[Rows, ...]
    """One for each layer."""
    values: tuple[Rows, ...]

    def by_position(self) -> tuple[NDArray[np.int32], tuple[Rows, ...], tuple[Rows, ...]]:
        """Positions, keys and values in ascending order of positions: comparable between engines
        that placed the same cells differently."""
        order = np.argsort(self.positions, kind="stable")
        keys = tuple(rows[order] for rows in self.keys)
        return self.positions[order], keys, tuple(rows[order] for rows in self.values)


def row_bytes(kv_type: str, n_values: int) -> int:
    """Bytes of one K or V row of ``n_values`` values."""
    _, per_block, block_bytes = _GGML_TYPE_SIZE[kv_type]
    return n_values // per_block * block_bytes


def ggml_type(kv_type: str) -> int:
    """llama.cpp's number of a KV type."""
    return _GGML_TYPE_SIZE[kv_type][0]


class _Reader:
    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data
        self._at = 0

    def take(self, n: int) -> NDArray[np.uint8]:
        left = len(self._data) - self._at
        if n > left:
            raise BlobError(f"the state blob is cut off: {n} bytes are missing, {left} are left")
        self._at += n
        return self._data[self._at - n : self._at]

    def number(self, kind: str = "<u4") -> int:
        dtype = np.dtype(kind)
        return int(self.take(dtype.itemsize).view(dtype)[0])

    def expect_end(self) -> None:
        left = len(self._data) - self._at
        if left:
            raise BlobError(f"the state blob has {left} bytes too many")


def parse_state_blob(data: NDArray[np.uint8]) -> StateBlob:
    """Read a blob of a unified cache, uint8 [n_bytes] contiguous. The rows are views into it.

    Raises BlobError, and OtherFlashAttentionError for transposed V.
    """
    reader = _Reader(data)
    magic, _sequence, n_streams = reader.number(), reader.number("<i4"), reader.number()
    if magic != _MAGIC:
        raise BlobError(f"this is no state blob of llama.cpp's one-sequence form ({magic:08x})")
    if n_streams != 1:
        raise BlobError(f"the state blob is of {n_streams} caches, a unified cache is one")
    n_cells = reader.number()
    if not n_cells:
        reader.expect_end()
        return StateBlob(np.empty(0, np.int32), None, (), ())
    cells = reader.take(n_cells * _CELL.itemsize).view(_CELL)
    if (cells["n_sequences"] != 1).any():
        raise BlobError("the state blob has cells that belong to no sequence, or to several")
    if reader.number():
        raise OtherFlashAttentionError(
            "the state blob has transposed V: it was made without flash attention"
        )
    n_layers = reader.number()
    kinds: list[int] = []
    # A lying number of layers ends at the end of the blob.
    keys = [_rows(reader, n_cells, kinds) for _ in range(n_layers)]
    values = [_rows(reader, n_cells, kinds) for _ in range(n_layers)]
    reader.expect_end()
    if len(set(kinds)) != 1:
        raise BlobError(f"the state blob mixes types of rows: {sorted(set(kinds))}")
    return StateBlob(cells["position"].copy(), kinds[0], tuple(keys), tuple(values))


def _rows(reader: _Reader, n_cells: int, kinds: list[int]) -> Rows:
    kinds.append(reader.number("<i4"))
    size = reader.number("<u8")
    return reader.take(n_cells * size).reshape(n_cells, size)


def check_rows(rows: Sequence[Rows], n_layer: int, n_bytes: int, name: str) -> None:
    """Raises BlobError when there are not ``n_layer`` layers with rows of ``n_bytes`` bytes."""
    sizes = {layer.shape[1] for layer in rows}
    if len(rows) != n_layer or sizes != {n_bytes}:
        raise BlobError(
            f"the state blob has {len(rows)} layers with {name} rows of {sorted(sizes)} bytes, its "
            f"header says {n_layer} layers with {n_bytes} bytes"
        )
