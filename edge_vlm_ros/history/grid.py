"""How the tokens of a frame lie in models whose positions have rows and columns (M-RoPE)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

N_SECTIONS = 4
"""Positions of a row of embeddings in such models: in time, by row and by column of the frame, and
one that is not used."""


class Grid(NamedTuple):
    """The image embeddings of a frame in ``rows`` and ``columns``, row by row. ``before`` and
    ``after`` are rows that are like text, where an encoder puts such around the image."""

    rows: int
    columns: int
    before: int = 0
    after: int = 0

    @property
    def n_tokens(self) -> int:
        return self.before + self.rows * self.columns + self.after

    @property
    def n_positions(self) -> int:
        """How far the frame moves the position of what follows."""
        return self.before + max(self.rows, self.columns) + self.after

    def positions(self, start: int = 0) -> NDArray[np.int32]:
        """Positions int32 [N_SECTIONS, n_tokens] of a frame that begins at ``start``. Those of the
        image are all at the same time."""
        image = start + self.before
        y, x = np.divmod(
            np.arange(self.rows * self.columns, dtype=np.int32), np.int32(self.columns)
        )
        parts = (
            in_line(start, self.before),
            np.stack((0 * y + image, y + image, x + image, 0 * y)),
            in_line(start + self.n_positions - self.after, self.after),
        )
        return np.concatenate(parts, axis=1)


def in_line(start: int, n: int, n_sections: int = N_SECTIONS) -> NDArray[np.int32]:
    """Positions int32 [n_sections, n] of rows that follow one another like text."""
    along = np.arange(start, start + n, dtype=np.int32)
    return along[None] if n_sections == 1 else np.stack((along, along, along, 0 * along))


def embedding_positions(n_embeddings: int, grid: Grid | None) -> int:
    """Positions that a frame's embeddings take: one each without a grid."""
    return n_embeddings if grid is None else grid.n_positions
