"""Writes test/demo/data/render_reference.npz: frames of the training renderer with a known look.

    python -m tools.demo_model.render_reference

The test of the NumPy renderer compares its pictures to them. The file holds the look itself, so it
stays valid when the drawing of looks changes.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from edge_vlm_ros.demo.look import FrameLook, Look
from edge_vlm_ros.demo.sprites import sprite_bank
from edge_vlm_ros.demo.world import MAX_KINDS, Scene
from tools.demo_model.frame_params import N_COLUMNS, SIZE, U, V, fill_scene
from tools.demo_model.renderer_torch import Noise, Textures, render_batch

SCENE_SEEDS = (11, 23, 37, 58)
N_FRAMES = 6
PATH = Path(__file__).resolve().parents[2] / "test" / "demo" / "data" / "render_reference.npz"


class GivenNoise(Noise):
    """The textures of a look in place of random ones."""

    def __init__(self, look: Look) -> None:
        super().__init__(torch.device("cpu"))
        self._look = look

    def textures(self, n_scenes: int) -> Textures:
        coarse, grain, wall = (
            torch.tensor(grid)[None, None]
            for grid in (self._look.coarse, self._look.grain, self._look.wall)
        )
        return coarse, grain, wall, torch.full((1, 1, 1, 1), self._look.grain_strength)


def render_with_look(
    scene: Scene, look: Look, frame_looks: list[FrameLook], bank: torch.Tensor
) -> npt.NDArray[np.float32]:
    """[n_frames, 3, 224, 224] in [0, 1], without the sensor."""
    objects = np.zeros((scene.n_frames, MAX_KINDS, N_COLUMNS), np.float32)
    objects[..., SIZE] = 1
    fill_scene(objects, scene, look.view, look.object_rgb(scene).astype(np.float64))
    objects[..., U : V + 1] += np.array([f.jitter for f in frame_looks], np.float32)[:, None]
    background = np.array([[look.horizon, *look.table_rgb, *look.wall_rgb]], np.float32)
    pictures: npt.NDArray[np.float32] = render_batch(
        torch.tensor(objects),
        torch.tensor(background),
        torch.zeros(scene.n_frames, dtype=torch.long),
        bank,
        224,
        n_slots=MAX_KINDS,
        noise=GivenNoise(look),
        augment=False,
    ).numpy()
    return pictures


def main() -> None:
    bank = torch.tensor(sprite_bank())
    fields: dict[str, npt.ArrayLike] = {"scene_seeds": SCENE_SEEDS, "n_frames": N_FRAMES}
    for seed in SCENE_SEEDS:
        scene = Scene.random(random.Random(seed), N_FRAMES)
        look = Look.draw(seed)
        frame_look = FrameLook.draw(seed, N_FRAMES - 1)
        pictures = render_with_look(scene, look, [frame_look] * N_FRAMES, bank)
        fields |= {
            f"{seed}_view": (*look.view.shift, look.view.zoom),
            f"{seed}_horizon": look.horizon,
            f"{seed}_table_rgb": look.table_rgb,
            f"{seed}_wall_rgb": look.wall_rgb,
            f"{seed}_object_tints": look.object_tints,
            f"{seed}_coarse": look.coarse,
            f"{seed}_grain": look.grain,
            f"{seed}_wall": look.wall,
            f"{seed}_grain_strength": look.grain_strength,
            f"{seed}_jitter": frame_look.jitter,
            f"{seed}_last_frame": np.rint(pictures[-1] * 255).astype(np.uint8),
        }
    PATH.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(PATH, **fields)  # type: ignore[arg-type]
    print(f"{PATH}: {PATH.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
