"""Bilinear sampling, and the noise textures of table and wall."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_vlm_ros.demo.look import COARSE_GRID, GRAIN_GRID, WALL_GRID, Look

Array = npt.NDArray[np.float32]
Positions = npt.NDArray[np.floating[Any]]

TRAINED_SIZE = 224  # width and height of the pictures that the model was trained on


def sample(grid: Array, rows: Positions, columns: Positions) -> Array:
    """Bilinear values of grid [..., h, w] at rows x columns: [..., len(rows), len(columns)].

    Positions count from the centre of the first grid pixel; beyond the border they are clamped.
    """
    return _lerp(_lerp(grid, rows, -2), columns, -1)


def _lerp(grid: Array, at: Positions, axis: int) -> Array:
    last = grid.shape[axis] - 1
    at = np.clip(at, 0, last)
    low = at.astype(np.intp)
    weight = (at - low).astype(np.float32)
    if axis == -2:
        weight = weight[:, None]
    below = grid.take(low, axis)
    below += (grid.take(np.minimum(low + 1, last), axis) - below) * weight
    return below


def draw_background(look: Look, seed: int, width: int, height: int) -> Array:
    """float32 [3, height, width]: the empty table and the wall behind it."""
    coarse = _spread(look.coarse, COARSE_GRID, (seed, 3), width, height)
    grain = _spread(look.grain, GRAIN_GRID, (seed, 4), width, height)
    blotches = _spread(look.wall, WALL_GRID, (seed, 5), width, height)
    v = ((np.arange(height, dtype=np.float32) + 0.5) / height)[:, None]
    edge = 1 / (1 + np.exp(-(v - look.horizon) * TRAINED_SIZE * 0.8))
    table = 1 + 0.05 * coarse + 0.07 * look.grain_strength * grain + 0.12 * (v - 0.6)
    wall = 1 + 0.07 * blotches + 0.15 * (v - 0.2)
    table_rgb = np.array(look.table_rgb, np.float32)[:, None, None]
    wall_rgb = np.array(look.wall_rgb, np.float32)[:, None, None]
    return (table_rgb * table * edge + wall_rgb * wall * (1 - edge)).astype(np.float32)


def _spread(
    grid: Array, shape: tuple[int, int], seed: tuple[int, int], width: int, height: int
) -> Array:
    """Noise [height, width]: `grid` over the centred square, more of its kind on both sides."""
    if grid.shape != shape:
        raise ValueError(f"noise grid must have shape {shape}, got {grid.shape}")
    rows, columns = shape
    beside = int(np.ceil((width - height) / 2 / height * columns))
    if beside:
        more = np.random.default_rng(seed).standard_normal((rows, 2 * beside), np.float32)
        grid = np.concatenate([more[:, :beside], grid, more[:, beside:]], axis=1)
    row_at = (np.arange(height, dtype=np.float32) + 0.5) / height * rows - 0.5
    u = (np.arange(width, dtype=np.float32) + 0.5 - (width - height) / 2) / height
    return sample(grid, row_at, u * columns - 0.5 + beside)
