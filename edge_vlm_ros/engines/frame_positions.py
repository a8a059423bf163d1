"""The positions of a frame's embeddings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.history import Grid

N_SECTIONS = 4
"""Positions of a row of embeddings in models with M-RoPE: in time, by row and by column of the
frame, and one that is not used."""


def rows_in_grid(start: int, first: int, n: int, grid: Grid) -> NDArray[np.int32]:
    """Positions int32 [N_SECTIONS, n] of the rows ``first`` .. ``first`` + n - 1 of a frame that
    begins at position ``start``. All are at the same time.

    Raises ValueError when the grid has not so many rows.
    """
    rows, columns = grid
    if not 0 <= first <= first + n <= rows * columns:
        raise ValueError(
            f"rows {first} up to {first + n} of a frame are not in its grid {rows} x {columns}"
        )
    y, x = np.divmod(np.arange(first, first + n, dtype=np.int32), np.int32(columns))
    return np.stack((0 * y + start, y + start, x + start, 0 * y))


def rows_in_line(start: int, n: int, n_sections: int) -> NDArray[np.int32]:
    """Positions int32 [n_sections, n] of rows that follow one another like text."""
    along = np.arange(start, start + n, dtype=np.int32)
    return along[None] if n_sections == 1 else np.stack((along, along, along, 0 * along))
