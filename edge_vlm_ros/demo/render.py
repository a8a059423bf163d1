"""Draws the frames of a scene with NumPy and OpenCV.

Agrees with the training renderer (tools/demo_model/renderer_torch.py) within 0.02 grey levels of
255 when both are given the same look and the sensor is left out.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from edge_vlm_ros.demo.geometry import Placement, placements
from edge_vlm_ros.demo.look import FrameLook, Look, Sensor
from edge_vlm_ros.demo.sprite_canvas import FOOT
from edge_vlm_ros.demo.sprites import SPRITE_SIZE, sprite
from edge_vlm_ros.demo.texture import TRAINED_SIZE, draw_background, sample
from edge_vlm_ros.demo.world import Scene

Array = npt.NDArray[np.float32]
Picture = npt.NDArray[np.uint8]

_NOISE_MARGIN = 64  # sensor noise is cut at a random place from a plate larger by this


class SceneRenderer:
    """Draws any frame of a scene, in any order; equal arguments give equal pictures.

    The scene's unit square fills the centred height x height square of the picture; table and wall
    go on to both sides, so a centre crop shows what the model was trained on. The scene may grow
    after the renderer was made. Use it from one thread at a time: it reuses its buffers.

    Raises ValueError when the picture is higher than wide, or the seed negative.
    """

    def __init__(
        self,
        scene: Scene,
        seed: int,
        *,
        width: int = TRAINED_SIZE,
        height: int = TRAINED_SIZE,
        look: Look | None = None,
    ) -> None:
        if not 0 < height <= width:
            raise ValueError(f"need 0 < height <= width, got {width}x{height}")
        if seed < 0:
            raise ValueError(f"seed must be >= 0, got {seed}")
        self._scene = scene
        self._seed = seed
        self._look = look or Look.draw(seed)
        self._width, self._height = width, height
        self._background = draw_background(self._look, seed, width, height)
        plate = (3, height + _NOISE_MARGIN, width + _NOISE_MARGIN)
        self._noise = np.random.default_rng((seed, 2)).standard_normal(plate, np.float32)
        self._canvas = np.empty_like(self._background)

    def frame(self, index: int) -> Picture:
        """uint8 [height, width, 3] RGB of frame `index`. Raises IndexError outside the scene."""
        self._check(index)
        frame_look = FrameLook.draw(self._seed, index)
        scenery = self.scenery(index, frame_look, out=self._canvas)
        row, column = (int(x * _NOISE_MARGIN) for x in frame_look.noise_at)
        noise = self._noise[:, row : row + self._height, column : column + self._width]
        return expose(scenery, self._look.sensor, frame_look.flicker, noise)

    def scenery(self, index: int, frame_look: FrameLook, out: Array | None = None) -> Array:
        """float32 [3, height, width] RGB, 1 = full scale: the frame before the camera's sensor."""
        self._check(index)
        picture = np.empty_like(self._background) if out is None else out
        np.copyto(picture, self._background)
        rgb = self._look.object_rgb(self._scene)
        for placement in placements(self._scene, index, self._look.view):
            obj = self._scene.objects[placement.obj]
            texture = sprite(obj.type, obj.variant)
            self._draw(picture, placement, frame_look.jitter, texture, rgb[placement.obj])
        return picture

    def _check(self, index: int) -> None:
        if not 0 <= index < self._scene.n_frames:
            raise IndexError(f"frame {index} is not one of the scene's {self._scene.n_frames}")

    def _draw(
        self,
        picture: Array,
        placement: Placement,
        jitter: tuple[float, float],
        texture: Array,
        rgb: Array,
    ) -> None:
        """Draw one sprite over the picture, in place."""
        side = self._height
        scale = placement.size * side / SPRITE_SIZE  # picture pixels per sprite pixel
        foot_drop = placement.size * FOOT / 2  # the foot is so far below the sprite's middle
        x = (placement.u + jitter[0]) * side + (self._width - side) / 2
        y = (placement.v + jitter[1] - foot_drop) * side
        columns, column_at = _span(x, scale, self._width)
        rows, row_at = _span(y, scale, self._height)
        bordered = np.pad(texture, ((0, 0), (1, 1), (1, 1)))  # nothing outside the sprite
        piece = sample(bordered, row_at + 1, column_at + 1)
        alpha, factor, added, shadow = piece[0], piece[1], piece[2:5], piece[5]
        color = rgb[:, None, None] * factor + added * (rgb.mean() * 0.5 + 0.5)
        np.clip(color, 0, 1, out=color)
        area = picture[:, rows, columns]
        area *= (1 - 0.5 * shadow * (1 - alpha)) * (1 - alpha)
        area += color * alpha


def _span(middle: float, scale: float, limit: int) -> tuple[slice, Array]:
    """The pixels along one axis that a sprite touches, and where they lie in it (sprite pixels)."""
    half = (SPRITE_SIZE / 2 + 0.5) * scale  # half a sprite pixel more: its edge fades out
    first = min(limit, max(0, int(np.ceil(middle - half - 0.5))))
    last = max(first, min(limit, int(np.floor(middle + half - 0.5)) + 1))
    at = (np.arange(first, last) + 0.5 - middle) / scale + SPRITE_SIZE / 2 - 0.5
    return slice(first, last), at.astype(np.float32)


def expose(scenery: Array, sensor: Sensor, flicker: float, noise: Array) -> Picture:
    """What the camera makes of a scenery: exposure, white balance, gamma, noise, 8 bits.

    scenery, noise: float32 [3, height, width]; scenery is overwritten. Returns uint8
    [height, width, 3].
    """
    planes = []
    for plane, grain, balance in zip(scenery, noise, sensor.white_balance, strict=True):
        plane *= sensor.exposure * balance * flicker
        np.clip(plane, 1e-4, 1, out=plane)
        cv2.pow(plane, sensor.gamma, dst=plane)
        planes.append(cv2.addWeighted(plane, 255, grain, 255 * sensor.noise, 0, dtype=cv2.CV_8U))
    return np.asarray(cv2.merge(planes), np.uint8)
