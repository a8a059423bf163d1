"""The sprite bank: NUM_VARIANTS drawings of every object type, painted when first asked for.

A sprite is float32 [6, SPRITE_SIZE, SPRITE_SIZE] with the channels
  0 alpha, 1 factor of the object's colour, 2-4 added r, g, b, 5 shadow on the table.
"""

from __future__ import annotations

import functools
import random

import numpy as np
import numpy.typing as npt

from edge_vlm_ros.demo.sprite_canvas import Canvas, SpriteShape
from edge_vlm_ros.demo.sprite_painters import PAINTERS
from edge_vlm_ros.demo.world import TYPES

SPRITE_SIZE = 96
NUM_VARIANTS = 48
_BANK_SEED = 0


@functools.cache
def _shapes(seed: int) -> dict[tuple[str, int], SpriteShape]:
    """The drawn proportions of the whole bank; cheap, unlike the painting."""
    rng = random.Random(seed)
    return {
        (type_, variant): SpriteShape.draw(rng, type_)
        for type_ in TYPES
        for variant in range(NUM_VARIANTS)
    }


@functools.lru_cache(maxsize=128)
def sprite(type_: str, variant: int) -> npt.NDArray[np.float32]:
    """The sprite of an object; any variant >= 0 is valid, they repeat after NUM_VARIANTS.

    The array is shared and read-only. Raises KeyError for an unknown type.
    """
    shape = _shapes(_BANK_SEED)[type_, variant % NUM_VARIANTS]
    canvas = Canvas(SPRITE_SIZE, shape)
    PAINTERS[type_](canvas)
    picture = canvas.finish()
    picture.setflags(write=False)
    return picture


def sprite_bank() -> npt.NDArray[np.float32]:
    """All sprites: float32 [types, variants, 6, SPRITE_SIZE, SPRITE_SIZE] (127 MB)."""
    return np.stack([np.stack([sprite(type_, v) for v in range(NUM_VARIANTS)]) for type_ in TYPES])
