"""Batched renderer for training: the same pictures as edge_vlm_ros.demo.render, on any device.

The three stages are separate functions so that training can compile them; none has shapes that
depend on data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edge_vlm_ros.demo.look import COARSE_GRID, GRAIN_GRID, WALL_GRID
from edge_vlm_ros.demo.sprite_canvas import FOOT
from edge_vlm_ros.demo.world import Scene
from tools.demo_model.frame_params import ON, RED, SIZE, TYPE, VARIANT, FrameParams, U, V

# Background noise of S scenes: three grids [S, 1, h, w] and the strength of the grain [S, 1, 1, 1].
Textures = tuple[Tensor, Tensor, Tensor, Tensor]


class Noise:
    """Random tensors of one device, reproducible when a generator is given."""

    def __init__(self, device: torch.device, generator: torch.Generator | None = None) -> None:
        self._device, self._generator = device, generator

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self._device, generator=self._generator)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, device=self._device, generator=self._generator)

    def textures(self, n_scenes: int) -> Textures:
        coarse, grain, wall = (
            self.normal(n_scenes, 1, *grid) for grid in (COARSE_GRID, GRAIN_GRID, WALL_GRID)
        )
        return coarse, grain, wall, self.uniform(n_scenes, 1, 1, 1)


def draw_background(
    background: Tensor, scene: Tensor, textures: Textures, size: int, dtype: torch.dtype
) -> Tensor:
    """[N, 3, size, size]: the empty tables. background [S, 7] and scene [N] as in FrameParams."""

    def spread(grid: Tensor) -> Tensor:
        return functional.interpolate(grid[scene], size=(size, size), mode="bilinear")

    rows = (torch.arange(size, device=background.device) + 0.5) / size
    v = rows.view(1, 1, size, 1)
    coarse, grain, blotches = (spread(grid) for grid in textures[:3])
    strength = textures[3][scene]
    b = background[scene]
    n = scene.shape[0]
    edge = torch.sigmoid((v - b[:, 0].view(n, 1, 1, 1)) * size * 0.8)
    on_table = 1 + 0.05 * coarse + 0.07 * strength * grain + 0.12 * (v - 0.6)
    on_wall = 1 + 0.07 * blotches + 0.15 * (v - 0.2)
    table = b[:, 1:4].view(n, 3, 1, 1) * on_table
    wall = b[:, 4:7].view(n, 3, 1, 1) * on_wall
    return (table * edge + wall * (1 - edge)).to(dtype)


def draw_object(pictures: Tensor, rows: Tensor, bank: Tensor) -> Tensor:
    """Draw one object slot of every frame over pictures [N, 3, size, size].

    rows: [N, N_COLUMNS] of FrameParams. bank: sprite_bank().
    """
    n, _, size, _ = pictures.shape
    dtype = pictures.dtype
    axis = (torch.arange(size, device=pictures.device) + 0.5) / size * 2 - 1
    sprites = bank[rows[:, TYPE].long(), rows[:, VARIANT].long()].to(dtype)
    scale = rows[:, SIZE].view(n, 1, 1)
    x = (rows[:, U] * 2 - 1).view(n, 1, 1)
    y = (rows[:, V] * 2 - 1).view(n, 1, 1)
    at_x = ((axis.view(1, 1, size) - x) / scale).expand(n, size, size)
    at_y = ((axis.view(1, size, 1) - y) / scale + FOOT).expand(n, size, size)
    piece = functional.grid_sample(
        sprites,
        torch.stack([at_x, at_y], -1).to(dtype),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    )
    on = rows[:, ON].view(n, 1, 1, 1).to(dtype)
    color = rows[:, RED : RED + 3].view(n, 3, 1, 1).to(dtype)
    alpha = piece[:, 0:1] * on
    pictures = pictures * (1 - 0.5 * piece[:, 5:6] * on * (1 - alpha))
    light = color.mean(1, keepdim=True) * 0.5 + 0.5
    rgb = (color * piece[:, 1:2] + piece[:, 2:5] * light).clamp(0, 1)
    return pictures * (1 - alpha) + rgb * alpha


def expose(
    pictures: Tensor, scene: Tensor, n_scenes: int, noise: Noise, dtype: torch.dtype
) -> Tensor:
    """Exposure, white balance, gamma and sensor noise."""
    exposure = 0.78 + 0.44 * noise.uniform(n_scenes, 1, 1, 1)[scene]
    balance = 0.94 + 0.12 * noise.uniform(n_scenes, 3, 1, 1)[scene]
    flicker = 0.97 + 0.06 * noise.uniform(pictures.shape[0], 1, 1, 1)
    pictures = pictures.float() * exposure * balance * flicker
    gamma = 0.8 + 0.45 * noise.uniform(n_scenes, 1, 1, 1)[scene]
    grain = noise.uniform(n_scenes, 1, 1, 1)[scene] * 0.03
    pictures = pictures.clamp(1e-4, 1) ** gamma + grain * noise.normal(*pictures.shape)
    return pictures.clamp(0, 1).to(dtype)


@dataclass(frozen=True)
class Stages:
    """The functions of the renderer; training may put compiled ones here."""

    background: Callable[..., Tensor] = draw_background
    object: Callable[..., Tensor] = draw_object
    expose: Callable[..., Tensor] = expose


def render_batch(
    objects: Tensor,
    background: Tensor,
    scene: Tensor,
    bank: Tensor,
    size: int,
    *,
    n_slots: int,
    noise: Noise,
    dtype: torch.dtype = torch.float32,
    out_dtype: torch.dtype = torch.float32,
    augment: bool = True,
    stages: Stages | None = None,
) -> Tensor:
    """[N, 3, size, size] in [0, 1]. All tensors on one device, their meaning as in FrameParams.

    n_slots: object slots that are drawn. augment: with the camera's sensor.
    """
    stages = stages or Stages()
    n_scenes = background.shape[0]
    textures = noise.textures(n_scenes)
    pictures = stages.background(background, scene, textures, size, dtype)
    for slot in range(n_slots):
        pictures = stages.object(pictures, objects[:, slot].contiguous(), bank)
    if not augment:
        return pictures.to(out_dtype).clamp(0, 1)
    return stages.expose(pictures, scene, n_scenes, noise, out_dtype)


def render(params: FrameParams, bank: Tensor, size: int = 224, *, augment: bool = True) -> Tensor:
    """float32 [N, 3, size, size] in [0, 1], on the CPU; the same parameters give the same pictures.

    bank: torch.tensor(sprite_bank()).
    """
    generator = torch.Generator()
    generator.manual_seed(params.seed)
    return render_batch(
        torch.as_tensor(params.objects),
        torch.as_tensor(params.background),
        torch.as_tensor(params.scene),
        bank,
        size,
        n_slots=int(params.objects[..., ON].sum(-1).max()),
        noise=Noise(torch.device("cpu"), generator),
        augment=augment,
    )


def item_frames(scene: Scene, seed: int, bank: Tensor, size: int = 224) -> npt.NDArray[np.uint8]:
    """The frames of a held-out item (see make_item), as a camera gives them: uint8 [F, H, W, 3]."""
    params = FrameParams.draw([scene], np.random.default_rng(seed))
    pictures = render(params, bank, size).permute(0, 2, 3, 1)
    frames: npt.NDArray[np.uint8] = (pictures * 255).round().byte().numpy()
    return frames
