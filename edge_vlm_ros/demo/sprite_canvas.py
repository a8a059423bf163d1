"""A canvas that shapes are painted on by their signed distance (negative inside).

Coordinates are [-1, 1], y down; an object stands on y = FOOT.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]

FOOT = 0.7
_EDGE = 2.5  # width of an antialiased edge, in sprite pixels / 2


@dataclass(frozen=True)
class SpriteShape:
    """Proportions of one sprite."""

    stretch: tuple[float, float]
    mirrored: bool
    light: tuple[float, float]  # direction that the light comes from
    box: tuple[float, float] = (0.0, 0.0)  # half width and depth of a box

    @classmethod
    def draw(cls, rng: random.Random, type_: str) -> SpriteShape:
        stretch = (rng.uniform(0.88, 1.12), rng.uniform(0.88, 1.12))
        mirrored = rng.random() < 0.5
        light = (rng.uniform(-0.6, 0.6), rng.uniform(-0.8, -0.3))
        box = (rng.uniform(0.5, 0.6), rng.uniform(0.2, 0.3)) if type_ == "box" else (0.0, 0.0)
        return cls(stretch, mirrored, light, box)


class Canvas:
    """Holds the picture while a painter covers it shape by shape."""

    def __init__(self, size: int, shape: SpriteShape) -> None:
        axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1
        self._plain_x, self._plain_y = np.meshgrid(axis, axis)
        self.shape = shape
        self.x: Array = self._plain_x / shape.stretch[0]
        self.y: Array = (self._plain_y - FOOT) / shape.stretch[1] + FOOT
        if shape.mirrored:
            self.x = -self.x
        self._pixel = _EDGE / size
        self._alpha: Array = np.zeros((size, size), np.float32)
        self._factor: Array = np.ones((size, size), np.float32)
        self._added: Array = np.zeros((3, size, size), np.float32)

    def paint(
        self,
        distance: Array,
        factor: float | Array,
        added: tuple[float, float, float] | Array = (0.0, 0.0, 0.0),
    ) -> None:
        """Cover the inside: object colour x factor + added (a colour, or one value per pixel)."""
        cover = np.clip(0.5 - distance / self._pixel, 0, 1)
        if isinstance(added, tuple):
            light = np.asarray(added, np.float32)[:, None, None]
        else:
            light = added[None]
        self._alpha = self._alpha + cover - self._alpha * cover
        self._factor = self._factor * (1 - cover) + factor * cover
        self._added = self._added * (1 - cover) + light * cover

    def finish(self) -> npt.NDArray[np.float32]:
        """float32 [6, size, size], with the soft shadow on the table."""
        sx = self.shape.stretch[0]
        away = np.hypot((self._plain_x - 0.10) / (0.80 * sx), (self._plain_y - 0.68) / 0.24)
        shadow = np.exp(-(np.clip(away, 0, 9) ** 2) * 1.3)
        return np.stack([self._alpha, self._factor, *self._added, shadow]).astype(np.float32)

    # ---- signed distances

    def ellipse(self, cx: float, cy: float, rx: float, ry: float) -> Array:
        radius: Array = np.hypot((self.x - cx) / rx, (self.y - cy) / ry)
        return (radius - 1) * min(rx, ry)

    def rect(self, x0: float, x1: float, y0: float, y1: float, radius: float = 0.0) -> Array:
        dx = np.abs(self.x - (x0 + x1) / 2) - (x1 - x0) / 2 + radius
        dy = np.abs(self.y - (y0 + y1) / 2) - (y1 - y0) / 2 + radius
        inside: Array = np.minimum(np.maximum(dx, dy), 0)
        outside: Array = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
        return inside + outside - radius

    def polygon(self, corners: Sequence[tuple[float, float]]) -> Array:
        """A convex polygon, in either winding."""
        points = np.asarray(corners, np.float32)
        centre = points.mean(0)
        distance: Array = np.full(self.x.shape, -9, np.float32)
        for a, b in zip(points, np.roll(points, -1, 0), strict=True):
            nx, ny = b[1] - a[1], a[0] - b[0]
            sign = 1 if (centre[0] - a[0]) * nx + (centre[1] - a[1]) * ny < 0 else -1
            side = ((self.x - a[0]) * nx + (self.y - a[1]) * ny) / np.hypot(nx, ny)
            distance = np.maximum(distance, sign * side)
        return distance

    # ---- shading: factors of the object's colour

    def upright_shading(self) -> Array:
        """Of an upright round body."""
        centre = self.shape.light[0] * 0.5
        lit: Array = np.clip(1 - ((self.x - centre) / 0.55) ** 2, 0, 1)
        return 0.62 + 0.5 * lit

    def ball_shading(self, cx: float, cy: float, radius: float) -> Array:
        lx, ly = self.shape.light
        nx, ny = (self.x - cx) / radius, (self.y - cy) / radius
        nz = np.sqrt(np.clip(1 - nx**2 - ny**2, 0, 1))
        lit: Array = np.clip(nx * lx * 0.6 + ny * ly * 0.8 + nz * 0.75, 0, 1.1)
        return 0.45 + 0.62 * lit

    def highlight(self, cx: float, cy: float, radius: float, strength: float = 0.35) -> Array:
        """White light to add, per pixel."""
        dx = self.x - cx - self.shape.light[0] * radius * 0.5
        dy = self.y - cy + radius * 0.4
        light: Array = np.exp(-(dx**2 + dy**2) / (radius * 0.22) ** 2)
        return light * strength
