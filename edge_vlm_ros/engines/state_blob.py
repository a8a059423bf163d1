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
_START = np.dtype([("magic", "<u4"), ("sequence", "<i4"), ("n_streams", "<u4"), ("n_cells", "<u4")])
_CELL = np.dtype([("position", "<i4"), ("n_sequences", "<u4"), ("sequence", "<i4")])
_GRID_CELL = np.dtype(
    [("position", "<i4"), ("n_sequences", "<u4"), ("column", "<i4"), ("row", "<i4"),
     ("token", "<i4"), ("sequence", "<i4")]
)  # fmt: skip

Rows = NDArray[np.uint8]
"""One row per cell, uint8 [n_cells, row bytes]."""


@dataclass(frozen=True, eq=False)
class StateBlob:
    """Cells in the order of the blob, which is not that of their positions in general."""

    positions: NDArray[np.int32]
    grid_positions: NDArray[np.int32] | None
    """[n_cells, 2], the positions by row and by column, in models with M-RoPE."""
    ggml_type: int | None
    """Of all rows; None when there are no cells."""
    keys: tuple[Rows, ...]
    """One for each layer."""
    values: tuple[Rows, ...]

    def by_position(self) -> tuple[NDArray[np.int32], tuple[Rows, ...], tuple[Rows, ...]]:
        """Positions, keys and values in ascending order of positions: comparable between engines
        that placed the same cells differently."""
        grid = () if self.grid_positions is None else self.grid_positions.T[::-1]
        order = np.lexsort((*grid, self.positions))
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


def parse_state_blob(data: NDArray[np.uint8], *, has_grids: bool = False) -> StateBlob:
    """Read a blob of a unified cache, uint8 [n_bytes] contiguous. The rows are views into it.

    ``has_grids`` says whether it is of a model with M-RoPE. Raises BlobError, and
    OtherFlashAttentionError for transposed V.
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
        return StateBlob(np.empty(0, np.int32), None, None, (), ())
    kind = _GRID_CELL if has_grids else _CELL
    cells = reader.take(n_cells * kind.itemsize).view(kind)
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
    grid = np.stack((cells["row"], cells["column"]), 1) if has_grids else None
    return StateBlob(cells["position"].copy(), grid, kinds[0], tuple(keys), tuple(values))


def cell_positions(data: NDArray[np.uint8], *, has_grids: bool) -> NDArray[np.int32]:
    """The positions in a whole blob, int32 [n_cells], in the order of its cells."""
    n_cells = int(data[: _START.itemsize].view(_START)["n_cells"][0])
    kind = _GRID_CELL if has_grids else _CELL
    positions: NDArray[np.int32] = (
        data[_START.itemsize :][: n_cells * kind.itemsize].view(kind)["position"].copy()
    )
    return positions


def unread_cells(
    positions: NDArray[np.int32], kv_type: str, n_layer: int, n_embd_k: int, n_embd_v: int
) -> NDArray[np.uint8]:
    """A blob of cells at these positions that nobody will read, of a model with M-RoPE."""
    n = len(positions)
    start = np.array([(_MAGIC, 0, 1, n)], _START)
    cells = np.zeros(n, _GRID_CELL)
    cells["position"], cells["n_sequences"] = positions, 1
    parts = [start.tobytes(), cells.tobytes(), np.array([0, n_layer], "<u4").tobytes()]
    for n_values in (n_embd_k, n_embd_v):
        size = row_bytes(kv_type, n_values)
        layer = np.array([ggml_type(kv_type)], "<i4").tobytes() + np.array([size], "<u8").tobytes()
        parts += [layer + bytes(n * size)] * n_layer
    return np.frombuffer(b"".join(parts), np.uint8)


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
