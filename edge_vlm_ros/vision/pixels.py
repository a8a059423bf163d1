"""Turns the uint8 pixels of a frame into the float32 input of an encoder."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..model_profile import EncoderProfile
from .encoder import RgbImage


class PixelTable:
    """The input value of each pixel value, per channel, looked up instead of computed."""

    def __init__(self, profile: EncoderProfile) -> None:
        pixels = np.arange(256, dtype=np.float64)
        rows = [
            (pixels * profile.scale - mean) / std
            for mean, std in zip(profile.mean, profile.std, strict=True)
        ]
        # Rounded once, from float64: every backend gets the same bits.
        self._rows = np.asarray(rows, dtype=np.float32)

    def channels_first(self, rgb: RgbImage) -> npt.NDArray[np.float32]:
        """uint8 [height, width, 3] -> float32 [1, 3, height, width]."""
        values = np.empty((1, 3, *rgb.shape[:2]), dtype=np.float32)
        for channel in range(3):
            np.take(self._rows[channel], rgb[:, :, channel], out=values[0, channel])
        return values

    def channels_last(self, rgb: RgbImage) -> npt.NDArray[np.float32]:
        """uint8 [height, width, 3] -> float32 [1, height, width, 3]."""
        return np.ascontiguousarray(self.channels_first(rgb).transpose(0, 2, 3, 1))
