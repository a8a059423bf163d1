"""What a scene looks like besides its objects: camera, colours, textures, light, sensor.

The distributions are those of the training renderer; the random numbers are NumPy's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge_vlm_ros.demo.geometry import View
from edge_vlm_ros.demo.world import COLORS, MAX_KINDS, Scene

Array = npt.NDArray[np.float32]

# Background noise grids of the unit square, (rows, columns).
COARSE_GRID = (6, 6)  # blotches on the table
GRAIN_GRID = (40, 5)  # wood grain
WALL_GRID = (4, 4)


@dataclass(frozen=True)
class Sensor:
    """Camera electronics of a scene."""

    exposure: float
    white_balance: tuple[float, float, float]
    gamma: float
    noise: float  # standard deviation, in units of full scale


@dataclass(frozen=True)
class Look:
    """The constants of a scene. Colours are in [0, 1]; grids are standard normal, float32."""

    view: View
    horizon: float  # v of the table's far edge
    table_rgb: tuple[float, float, float]
    wall_rgb: tuple[float, float, float]
    object_tints: Array  # [MAX_KINDS, 4]: brightness factor, then r, g, b to add
    coarse: Array
    grain: Array
    wall: Array
    grain_strength: float
    sensor: Sensor

    @classmethod
    def draw(cls, seed: int) -> Look:
        """The look that belongs to a seed (>= 0)."""
        rng = np.random.default_rng((seed, 0))
        dx, dy, zoom = (float(x) for x in rng.uniform([-0.03, -0.03, 0.94], [0.03, 0.03, 1.07]))
        horizon = 0.55 + (0.33 - 0.55) * zoom + dy + float(rng.uniform(-0.03, 0.02))
        base = rng.uniform(0.22, 0.78)
        table = np.clip(base * rng.uniform([0.95, 0.78, 0.55], [1.15, 1.0, 1.0]), 0, 1)
        wall = np.clip(rng.uniform(0.25, 0.9) + rng.uniform(-0.12, 0.12, 3), 0, 1)
        tints = np.concatenate(
            [rng.uniform(0.88, 1.08, (MAX_KINDS, 1)), rng.uniform(-0.035, 0.035, (MAX_KINDS, 3))],
            axis=1,
        )
        normal = [rng.standard_normal(g, np.float32) for g in (COARSE_GRID, GRAIN_GRID, WALL_GRID)]
        return cls(
            view=View((dx, dy), zoom),
            horizon=horizon,
            table_rgb=_triple(table),
            wall_rgb=_triple(wall),
            object_tints=tints.astype(np.float32),
            coarse=normal[0],
            grain=normal[1],
            wall=normal[2],
            grain_strength=float(rng.random()),
            sensor=Sensor(
                exposure=0.78 + 0.44 * float(rng.random()),
                white_balance=_triple(0.94 + 0.12 * rng.random(3)),
                gamma=0.8 + 0.45 * float(rng.random()),
                noise=0.03 * float(rng.random()),
            ),
        )

    def object_rgb(self, scene: Scene) -> Array:
        """[n_objects, 3]: the colour of every object of the scene."""
        colors = np.array([COLORS[o.color] for o in scene.objects], np.float32).reshape(-1, 3)
        tints = self.object_tints[: len(colors)]
        rgb: Array = np.clip(colors * tints[:, :1] + tints[:, 1:], 0, 1)
        return rgb


@dataclass(frozen=True)
class FrameLook:
    """What differs from frame to frame of one scene."""

    jitter: tuple[float, float]  # shift of the objects, in units of the square
    flicker: float  # factor on the exposure
    noise_at: tuple[float, float]  # where the sensor noise is cut from its plate, in [0, 1)

    @classmethod
    def draw(cls, seed: int, frame: int) -> FrameLook:
        """The look of one frame, from the scene's seed and the frame's index alone (both >= 0)."""
        rng = np.random.default_rng((seed, 1, frame))
        du, dv = (float(x) for x in rng.uniform(-0.005, 0.005, 2))
        flicker, row, column = (float(x) for x in rng.random(3))
        return cls((du, dv), 0.97 + 0.06 * flicker, (row, column))


def _triple(values: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    r, g, b = (float(x) for x in values)
    return r, g, b
