"""Bringing camera pixels to an encoder's input size, and naming the result by its digest."""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

import cv2
import numpy as np

from .encoder import RgbImage
from .errors import PreprocessError

ResizePolicy = Literal["stretch", "center_crop", "pad"]


def resize_rgb(
    rgb: RgbImage, size: tuple[int, int], policy: ResizePolicy, pad_value: int = 0
) -> RgbImage:
    """Bring a frame to ``size``.

    Policies: ``stretch`` scales both sides independently; ``center_crop`` first cuts the largest
    centred part with the wanted aspect ratio; ``pad`` keeps the whole picture, centred on a
    background of ``pad_value``.

    Interpolation: area averaging when neither side grows, bilinear otherwise. When the size
    already matches the bytes are returned unchanged (the same array, no copy).

    Args:
        rgb: uint8 [H, W, 3] of any size.
        size: (height, width) in pixels.
        policy: what to do with another aspect ratio.
        pad_value: 0 to 255, used for all three channels by ``pad``.

    Returns:
        uint8 [size[0], size[1], 3], contiguous.

    Raises:
        PreprocessError: wrong shape, dtype, size, policy or pad value.
    """
    _check(rgb, size, policy, pad_value)
    if rgb.shape[:2] == tuple(size):
        return np.ascontiguousarray(rgb)
    if policy == "stretch":
        return _scale(rgb, size)
    if policy == "center_crop":
        return _scale(_center_crop(rgb, size), size)
    return _pad(rgb, size, pad_value)


def pixel_digest(rgb: RgbImage) -> bytes:
    """32-byte digest of a frame's shape and pixels (uint8 [h, w, 3])."""
    digest = hashlib.blake2b(repr(rgb.shape).encode(), digest_size=32)
    digest.update(np.ascontiguousarray(rgb).data)
    return digest.digest()


def _check(rgb: RgbImage, size: tuple[int, int], policy: str, pad_value: int) -> None:
    if not isinstance(rgb, np.ndarray) or rgb.dtype != np.uint8:
        kind = rgb.dtype if isinstance(rgb, np.ndarray) else type(rgb).__name__
        raise PreprocessError(f"pixels must be a uint8 array, not {kind}")
    if rgb.ndim != 3 or rgb.shape[2] != 3 or 0 in rgb.shape:
        raise PreprocessError(
            f"pixels must have the shape [height, width, 3], none of them 0, not {rgb.shape}"
        )
    if len(size) != 2 or min(size) < 1:
        raise PreprocessError(f"the wanted size must be (height, width) >= 1, not {size}")
    if policy not in get_args(ResizePolicy):
        raise PreprocessError(
            f"unknown resize policy {policy!r}; use one of {', '.join(get_args(ResizePolicy))}"
        )
    if not 0 <= pad_value <= 255:
        raise PreprocessError(f"pad_value must be 0 to 255, not {pad_value}")


def _scale(rgb: RgbImage, size: tuple[int, int]) -> RgbImage:
    if rgb.shape[:2] == tuple(size):
        return np.ascontiguousarray(rgb)
    shrinks = size[0] <= rgb.shape[0] and size[1] <= rgb.shape[1]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    scaled = cv2.resize(rgb, (size[1], size[0]), interpolation=interpolation)
    return np.asarray(scaled, dtype=np.uint8)


def _center_crop(rgb: RgbImage, size: tuple[int, int]) -> RgbImage:
    height, width = rgb.shape[:2]
    crop_height, crop_width = height, width
    if width * size[0] > height * size[1]:
        crop_width = max(1, round(height * size[1] / size[0]))
    else:
        crop_height = max(1, round(width * size[0] / size[1]))
    top, left = (height - crop_height) // 2, (width - crop_width) // 2
    return rgb[top : top + crop_height, left : left + crop_width]


def _pad(rgb: RgbImage, size: tuple[int, int], pad_value: int) -> RgbImage:
    height, width = rgb.shape[:2]
    factor = min(size[0] / height, size[1] / width)
    inner = (
        min(size[0], max(1, round(height * factor))),
        min(size[1], max(1, round(width * factor))),
    )
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    padded = np.full((*size, 3), pad_value, dtype=np.uint8)
    padded[top : top + inner[0], left : left + inner[1]] = _scale(rgb, inner)
    return padded
