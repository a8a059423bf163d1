"""The libraries that convert colours: the distribution's cv_bridge, or rosbags-image.

Both are given images in their simplest form (see ``PlainImage``), on which they agree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .image_errors import ImageConversionError


@dataclass(frozen=True, eq=False)
class PlainImage:
    """An image with the fields of ``sensor_msgs/Image``: 8 bits a channel, rows without padding.

    Attributes:
        height: rows.
        width: pixels in a row.
        encoding: a name that both libraries know.
        step: bytes in a row: width x channels.
        data: uint8 [height, step], contiguous.
        is_bigendian: always 0; bytes have no byte order.
    """

    height: int
    width: int
    encoding: str
    step: int
    data: npt.NDArray[np.uint8]
    is_bigendian: int = 0


@dataclass(frozen=True)
class ImageBackend:
    """A conversion library: its name and ``to_rgb``, giving uint8 [height, width, 3]."""

    name: str
    to_rgb: Callable[[PlainImage], npt.NDArray[np.uint8]]


def load_cv_bridge() -> ImageBackend:
    """The distribution's cv_bridge.

    Raises:
        Exception: of any kind, when it is not installed or does not work with this NumPy.
    """
    from cv_bridge import CvBridge

    bridge = CvBridge()

    def to_rgb(image: PlainImage) -> npt.NDArray[np.uint8]:
        return cast("npt.NDArray[np.uint8]", bridge.imgmsg_to_cv2(image, "rgb8"))

    return _checked(ImageBackend("cv_bridge", to_rgb))


def load_rosbags_image() -> ImageBackend:
    """rosbags-image, for machines without a usable cv_bridge.

    Raises:
        Exception: of any kind, when it is not installed or does not work.
    """
    from rosbags.image import image_to_cvimage

    def to_rgb(image: PlainImage) -> npt.NDArray[np.uint8]:
        return cast("npt.NDArray[np.uint8]", image_to_cvimage(cast(Any, image), "rgb8"))

    return _checked(ImageBackend("rosbags-image", to_rgb))


@functools.cache
def default_backend() -> ImageBackend:
    """cv_bridge where it works, else rosbags-image.

    Raises:
        ImageConversionError: neither is usable (reason ``no_converter``).
    """
    problems = []
    for name, load in (("cv_bridge", load_cv_bridge), ("rosbags-image", load_rosbags_image)):
        try:
            return load()
        except Exception as error:  # a binary built for another NumPy fails in any way it likes
            problems.append(f"{name}: {type(error).__name__}: {error}")
    raise ImageConversionError(
        "no_converter",
        "no image conversion library is usable; install the distribution's cv_bridge or the "
        f"Python package rosbags-image ({'; '.join(problems)})",
    )


def _checked(backend: ImageBackend) -> ImageBackend:
    """Convert one blue pixel: a library built for another NumPy shows it here at the latest."""
    blue = PlainImage(1, 1, "bgr8", 3, np.array([[255, 0, 0]], dtype=np.uint8))
    result = np.asarray(backend.to_rgb(blue))
    if result.tolist() != [[[0, 0, 255]]]:
        raise RuntimeError(f"converted one blue pixel to {result.tolist()}")
    return backend
