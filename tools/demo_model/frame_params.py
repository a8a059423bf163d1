"""The numbers that the batched renderer needs for a list of scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge_vlm_ros.demo.geometry import View, placements
from edge_vlm_ros.demo.sprites import NUM_VARIANTS
from edge_vlm_ros.demo.world import COLOR_NAMES, COLORS, MAX_KINDS, TYPES, Scene

# Columns of `FrameParams.objects`.
ON, U, V, SIZE, RED, GREEN, BLUE, TYPE, VARIANT, COLOR = range(10)
N_COLUMNS = 10


@dataclass(frozen=True)
class FrameParams:
    """Numbers of N frames of B scenes, the frames of all scenes one after the other.

    objects: float32 [N, MAX_KINDS, N_COLUMNS], from the back to the front; unused slots are off.
    background: float32 [B, 7]: horizon, table r g b, wall r g b.
    scene: int64 [N]: the scene that a frame belongs to.
    seed: of the random textures and of the sensor.
    """

    objects: npt.NDArray[np.float32]
    background: npt.NDArray[np.float32]
    scene: npt.NDArray[np.int64]
    seed: int

    @classmethod
    def draw(cls, scenes: Sequence[Scene], rng: np.random.Generator) -> FrameParams:
        """Draw the looks of the scenes. The order of the draws is that of the held-out pictures."""
        n_scenes = len(scenes)
        n_frames = np.array([s.n_frames for s in scenes])
        total = int(n_frames.sum())
        camera = rng.uniform([-0.03, -0.03, 0.94], [0.03, 0.03, 1.07], (n_scenes, 3))
        jitter = rng.uniform(-0.005, 0.005, (total, 1, 2))
        tints = _draw_object_colors(scenes, rng)

        objects = np.zeros((total, MAX_KINDS, N_COLUMNS), np.float32)
        objects[..., SIZE] = 1  # the sprite of an unused slot is divided by its size, too
        first_frame = first_object = 0
        for scene, (dx, dy, zoom) in zip(scenes, camera, strict=True):
            rgb = tints[first_object : first_object + len(scene.objects)]
            area = objects[first_frame : first_frame + scene.n_frames]
            fill_scene(area, scene, View((dx, dy), zoom), rgb)
            first_frame += scene.n_frames
            first_object += len(scene.objects)
        objects[..., U : V + 1] += jitter

        base = rng.uniform(0.22, 0.78, (n_scenes, 1))
        shift = rng.uniform(-0.03, 0.02, n_scenes)
        horizon = 0.55 + (0.33 - 0.55) * camera[:, 2] + camera[:, 1] + shift
        table = base * rng.uniform([0.95, 0.78, 0.55], [1.15, 1.0, 1.0], (n_scenes, 3))
        wall = rng.uniform(0.25, 0.9, (n_scenes, 1)) + rng.uniform(-0.12, 0.12, (n_scenes, 3))
        colors = np.clip(np.concatenate([table, wall], 1), 0, 1)
        background = np.concatenate([horizon[:, None], colors], 1).astype(np.float32)
        seed = int(rng.integers(0, 1 << 31, 1)[0])
        return cls(objects, background, np.repeat(np.arange(n_scenes), n_frames), seed)


def _draw_object_colors(
    scenes: Sequence[Scene], rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """[objects of all scenes, 3]"""
    colors = np.array([COLORS[o.color] for s in scenes for o in s.objects]).reshape(-1, 3)
    factor = rng.uniform(0.88, 1.08, (len(colors), 1))
    added = rng.uniform(-0.035, 0.035, (len(colors), 3))
    return np.clip(colors * factor + added, 0, 1)


def fill_scene(
    objects: npt.NDArray[np.float32], scene: Scene, view: View, rgb: npt.NDArray[np.float64]
) -> None:
    """Write the rows of one scene's frames; nothing differs between two events."""
    cuts = [0, *sorted({e.frame for e in scene.events}), scene.n_frames]
    for start, stop in zip(cuts, cuts[1:], strict=False):
        for slot, p in enumerate(placements(scene, start, view)):
            obj = scene.objects[p.obj]
            objects[start:stop, slot] = (
                1, p.u, p.v, p.size, *rgb[p.obj],
                TYPES.index(obj.type), obj.variant % NUM_VARIANTS, COLOR_NAMES.index(obj.color),
            )  # fmt: skip


def grid_targets(
    objects: npt.NDArray[np.float32], grid: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """What each vision token sees, for the auxiliary loss.

    Two arrays [N, grid * grid]: the type's index + 1 (0: nothing), and the colour's index. The
    nearest object wins a shared cell.
    """
    n, slots = objects.shape[:2]
    types = np.zeros((n, grid, grid), np.uint8)
    colors = np.zeros((n, grid, grid), np.uint8)
    body = objects[..., V] - 0.28 * objects[..., SIZE]  # the middle of an object, above its foot
    column = np.clip((objects[..., U] * grid).astype(int), 0, grid - 1)
    row = np.clip((body * grid).astype(int), 0, grid - 1)
    frames = np.arange(n)
    for slot in range(slots):
        on = objects[:, slot, ON] > 0
        at = frames[on], row[on, slot], column[on, slot]
        types[at] = objects[on, slot, TYPE] + 1
        colors[at] = objects[on, slot, COLOR]
    return types.reshape(n, -1), colors.reshape(n, -1)
