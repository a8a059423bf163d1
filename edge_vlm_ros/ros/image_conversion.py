"""ROS camera messages -> RGB pixels.

The colour arithmetic is left to cv_bridge or rosbags-image. What they lack, or do differently, is
done here at the border: checks against malformed messages, row padding, 16-bit samples of either
byte order, generic encodings, YUYV (which older cv_bridges do not know; it becomes UYVY), and
NV12/NV21.

Conventions: 16-bit samples keep their high byte (``value >> 8``); alpha is dropped; ``8UC3`` and
``8UC4``, which name no colours, are taken as BGR(A), OpenCV's order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from .compressed_images import PIXEL_LIMIT, check_pixel_count, decode_compressed
from .image_backends import ImageBackend, PlainImage, default_backend
from .image_errors import ImageConversionError

if TYPE_CHECKING:
    from sensor_msgs.msg import CompressedImage, Image

__all__ = ["PIXEL_LIMIT", "ImageConversionError", "compressed_to_rgb", "image_to_rgb"]

RgbImage = npt.NDArray[np.uint8]


class _Encoding(NamedTuple):
    """How samples become the ``plain`` 8-bit encoding that both libraries know.

    sample_bytes: 1 or 2. swapped: the two channels come in the other order.
    """

    plain: str
    channels: int
    sample_bytes: int = 1
    swapped: bool = False


_BAYER = ("bayer_rggb", "bayer_bggr", "bayer_gbrg", "bayer_grbg")
_UYVY = ("yuv422", "uyvy")
_YUYV = ("yuv422_yuy2", "yuyv")
_YUV420 = {"nv12": cv2.COLOR_YUV2RGB_NV12, "nv21": cv2.COLOR_YUV2RGB_NV21}
_COLOURS = {"mono": 1, "rgb": 3, "bgr": 3, "rgba": 4, "bgra": 4}

_ENCODINGS: dict[str, _Encoding] = {
    **{f"{name}8": _Encoding(f"{name}8", count) for name, count in _COLOURS.items()},
    **{f"{name}16": _Encoding(f"{name}8", count, 2) for name, count in _COLOURS.items()},
    **{f"{name}8": _Encoding(f"{name}8", 1) for name in _BAYER},
    **{f"{name}16": _Encoding(f"{name}8", 1, 2) for name in _BAYER},
    **{name: _Encoding("yuv422", 2) for name in _UYVY},
    **{name: _Encoding("yuv422", 2, swapped=True) for name in _YUYV},
    "8UC1": _Encoding("mono8", 1),
    "8UC3": _Encoding("bgr8", 3),
    "8UC4": _Encoding("bgra8", 4),
}
_GENERIC = re.compile(r"(8U|8S|16U|16S|32S|32F|64F)(C[0-9]+)?")
_KNOWN_UNSUPPORTED = {"nv24"}


def image_to_rgb(
    msg: Image, *, max_pixels: int = PIXEL_LIMIT, backend: ImageBackend | None = None
) -> RgbImage:
    """Convert a ``sensor_msgs/Image``.

    Args:
        msg: the message; it is not changed, and the result shares no memory with it.
        max_pixels: largest width x height that is accepted.
        backend: conversion library; by default the best one that works here.

    Returns:
        uint8 [height, width, 3] RGB, contiguous.

    Raises:
        ImageConversionError: the message is malformed or not a colour image. Nothing else.
    """
    try:
        return _image_to_rgb(msg, max_pixels, backend)
    except ImageConversionError:
        raise
    except Exception as error:  # messages come from anywhere; the node must stay up
        raise ImageConversionError(
            "internal", f"converting an image failed: {type(error).__name__}: {error}"
        ) from error


def compressed_to_rgb(
    msg: CompressedImage, *, max_pixels: int = PIXEL_LIMIT, backend: ImageBackend | None = None
) -> RgbImage:
    """Convert a ``sensor_msgs/CompressedImage`` that holds a JPEG or PNG.

    The kind is taken from the data; ``format`` only tells depth images and raw Bayer mosaics.

    Args:
        msg: the message.
        max_pixels: largest width x height that is accepted, checked before decoding.
        backend: conversion library for Bayer mosaics.

    Returns:
        uint8 [height, width, 3] RGB, contiguous. Grey becomes RGB, 16 bits keep their high byte,
        alpha is dropped, an EXIF orientation is ignored.

    Raises:
        ImageConversionError: the data is malformed or not a colour image. Nothing else.
    """
    try:
        pixels, encoding = decode_compressed(msg.data, msg.format, max_pixels)
        return _plain_to_rgb(pixels, encoding, backend)
    except ImageConversionError:
        raise
    except Exception as error:  # messages come from anywhere; the node must stay up
        raise ImageConversionError(
            "internal", f"decoding an image failed: {type(error).__name__}: {error}"
        ) from error


def _image_to_rgb(msg: Image, max_pixels: int, backend: ImageBackend | None) -> RgbImage:
    height, width, name = msg.height, msg.width, msg.encoding
    if height == 0 or width == 0:
        raise ImageConversionError("empty", f"the image has a size of {width} x {height} pixels")
    check_pixel_count(width, height, max_pixels)
    if name in _YUV420:
        return _nv_to_rgb(msg, _YUV420[name])
    encoding = _lookup(name)
    if encoding.plain == "yuv422" and width % 2:
        raise ImageConversionError("bad_step", f"{name} needs an even width, not {width}")
    row_bytes = width * encoding.channels * encoding.sample_bytes
    rows = _rows(msg, height, row_bytes)
    if encoding.sample_bytes == 2:
        rows = rows[:, 0::2] if msg.is_bigendian else rows[:, 1::2]
    if encoding.swapped:  # as 16-bit numbers: ten times as fast as a reversed axis
        rows = np.ascontiguousarray(rows).view(np.uint16).byteswap().view(np.uint8)
    pixels = rows if encoding.channels == 1 else rows.reshape(height, width, encoding.channels)
    return _plain_to_rgb(pixels, encoding.plain, backend)


def _lookup(name: str) -> _Encoding:
    encoding = _ENCODINGS.get(name)
    if encoding is not None:
        return encoding
    generic = _GENERIC.fullmatch(name)
    if generic and generic.group(1) != "8U":
        raise ImageConversionError(
            "depth",
            f"encoding {name!r} holds depth or other measurements, not colours; "
            "subscribe to the camera's colour topic",
        )
    if generic or name in _KNOWN_UNSUPPORTED:
        raise ImageConversionError(
            "unsupported_encoding",
            f"encoding {name!r} is not converted; let the camera publish rgb8 or bgr8",
        )
    raise ImageConversionError(
        "unknown_encoding",
        f"unknown encoding {name[:40]!r}; it must be one of sensor_msgs, such as rgb8 or bgr8",
    )


def _rows(msg: Image, rows: int, row_bytes: int) -> npt.NDArray[np.uint8]:
    """uint8 [rows, row_bytes]: a view of the message's data without the padding of its rows."""
    step, have = msg.step, len(msg.data)
    if step < row_bytes:
        raise ImageConversionError(
            "bad_step",
            f"a row of {msg.width} pixels in {msg.encoding} takes {row_bytes} bytes, but step "
            f"says {step}",
        )
    needed = step * (rows - 1) + row_bytes  # some drivers leave out the last row's padding
    if have < needed:
        raise ImageConversionError(
            "empty" if have == 0 else "too_short",
            f"{msg.width} x {msg.height} pixels in {msg.encoding} with step {step} take {needed} "
            f"bytes, but the message holds {have}",
        )
    flat = np.frombuffer(msg.data, dtype=np.uint8)
    return np.lib.stride_tricks.as_strided(
        flat, shape=(rows, row_bytes), strides=(step, 1), writeable=False
    )


def _nv_to_rgb(msg: Image, code: int) -> RgbImage:
    """NV12 and NV21: a plane of Y, then one of interleaved U and V at half resolution.

    cv_bridge does not know them, and rosbags-image takes ``height`` as the rows of both planes,
    while camera drivers state the picture's. So OpenCV is called directly.
    """
    height, width = msg.height, msg.width
    if height % 2 or width % 2:
        raise ImageConversionError(
            "bad_step", f"{msg.encoding} needs an even width and height, not {width} x {height}"
        )
    planes = np.ascontiguousarray(_rows(msg, height * 3 // 2, width))
    return np.asarray(cv2.cvtColor(planes, code), dtype=np.uint8)


def _plain_to_rgb(
    pixels: npt.NDArray[np.uint8], encoding: str, backend: ImageBackend | None
) -> RgbImage:
    """Convert uint8 [height, width] or [height, width, channels]; the result is a copy."""
    if encoding == "rgb8":
        return np.array(pixels, order="C")
    height, width = pixels.shape[:2]
    data = np.ascontiguousarray(pixels).reshape(height, -1)
    plain = PlainImage(height, width, encoding, data.shape[1], data)
    return np.ascontiguousarray((backend or default_backend()).to_rgb(plain), dtype=np.uint8)
