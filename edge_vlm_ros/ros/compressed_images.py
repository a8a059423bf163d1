"""Decoding of JPEG and PNG camera messages, with OpenCV.

OpenCV returns a partly grey picture for JPEGs that end too early and allocates by what the header
says; so the structure of the data is walked first. What stays undetected is a JPEG with bytes
missing in its middle but its end in place: the decoder fills it up.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from .image_errors import ImageConversionError

PIXEL_LIMIT = 40_000_000

_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
# A marker inside entropy-coded data: not a stuffed zero, a restart or a fill byte.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_NOT_COLOUR = re.compile(r"^(16[US]|32[SF]|64F)(C[0-9]+)?$")


def decode_compressed(
    data: Any, format_text: str, max_pixels: int
) -> tuple[npt.NDArray[np.uint8], str]:
    """Decode a JPEG or PNG.

    Args:
        data: the bytes, as any buffer.
        format_text: the message's ``format``, such as ``"rgb8; jpeg compressed bgr8"``.
        max_pixels: largest width x height.

    Returns:
        uint8 [h, w, 3] and ``"bgr8"``, or for a Bayer mosaic uint8 [h, w] and its encoding.

    Raises:
        ImageConversionError: see the reasons there.
    """
    encoding = format_text.split(";")[0].strip()
    _refuse_depth(encoding, format_text)
    if len(data) == 0:
        raise ImageConversionError("empty", "the compressed image holds no data")
    content = bytes(data)
    if content.startswith(_JPEG):
        width, height = _walk_jpeg(content)
    elif content.startswith(_PNG):
        width, height = _walk_png(content)
    else:
        raise ImageConversionError(
            "unknown_format",
            f"the data is neither JPEG nor PNG (format says {format_text[:60]!r}); "
            "let the camera's transport publish jpeg or png",
        )
    if width == 0 or height == 0:
        raise ImageConversionError("empty", f"the image has a size of {width} x {height} pixels")
    check_pixel_count(width, height, max_pixels)
    mosaic = re.fullmatch(r"bayer_(rggb|bggr|gbrg|grbg)(8|16)", encoding)
    if mosaic and "bgr8" not in format_text.partition(";")[2]:
        return _decode(content, cv2.IMREAD_GRAYSCALE), f"bayer_{mosaic.group(1)}8"
    return _decode(content, cv2.IMREAD_COLOR), "bgr8"


def check_pixel_count(width: int, height: int, max_pixels: int) -> None:
    """Refuse headers that promise more than ``max_pixels``, before anything is allocated."""
    if width * height > max_pixels:
        raise ImageConversionError(
            "too_large",
            f"{width} x {height} pixels are more than the {max_pixels} that are allowed; "
            "lower the camera's resolution",
        )


def _refuse_depth(encoding: str, format_text: str) -> None:
    if "compressedDepth" in format_text or _NOT_COLOUR.match(encoding):
        raise ImageConversionError(
            "depth",
            f"format {format_text[:60]!r} holds depth, not colours; subscribe to the camera's "
            "colour topic",
        )


def _decode(content: bytes, flags: int) -> npt.NDArray[np.uint8]:
    # The pixels must match the camera's calibration: no turning by an EXIF orientation.
    buffer = np.frombuffer(content, dtype=np.uint8)
    try:
        decoded = cv2.imdecode(buffer, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ImageConversionError("corrupt", f"OpenCV cannot decode it: {error}") from error
    if decoded is None:
        raise ImageConversionError("corrupt", "OpenCV cannot decode the compressed image")
    return np.asarray(decoded, dtype=np.uint8)


def _walk_jpeg(content: bytes) -> tuple[int, int]:
    """(width, height) of a JPEG whose segments are complete up to the end-of-image marker."""
    size = None
    for marker, payload in _jpeg_segments(content):
        if marker in _START_OF_FRAME and len(payload) >= 5 and size is None:
            height, width = struct.unpack_from(">HH", payload, 1)
            size = (width, height)
    if size is None:
        raise ImageConversionError("corrupt", "the JPEG states no picture size")
    return size


def _jpeg_segments(content: bytes) -> Iterator[tuple[int, bytes]]:
    position = 2
    while True:
        while content[position : position + 2] == b"\xff\xff":
            position += 1
        head = content[position : position + 2]
        if len(head) < 2:
            raise _truncated("JPEG", len(content))
        if head[0] != 0xFF:
            raise ImageConversionError("corrupt", f"the JPEG has no marker at byte {position}")
        if head[1] == _END_OF_IMAGE:
            return
        length = int.from_bytes(content[position + 2 : position + 4], "big")
        end = position + 2 + length
        if end > len(content):
            raise _truncated("JPEG", len(content))
        if length < 2:
            raise ImageConversionError("corrupt", f"the JPEG segment at byte {position} is broken")
        yield head[1], content[position + 4 : end]
        position = end
        if head[1] == _START_OF_SCAN:
            found = _MARKER.search(content, end)
            if found is None:
                raise _truncated("JPEG", len(content))
            position = found.start()


def _walk_png(content: bytes) -> tuple[int, int]:
    """(width, height) of a PNG whose chunks are complete, with right checksums, up to IEND."""
    position = len(_PNG)
    size = None
    while True:
        head = content[position : position + 8]
        if len(head) < 8:
            raise _truncated("PNG", len(content))
        length = int.from_bytes(head[:4], "big")
        end = position + 8 + length
        if end + 4 > len(content):
            raise _truncated("PNG", len(content))
        body = content[position + 4 : end]
        if zlib.crc32(body) != int.from_bytes(content[end : end + 4], "big"):
            raise ImageConversionError("corrupt", "a checksum in the PNG is wrong")
        kind = body[:4]
        if kind == b"IHDR" and length >= 8 and size is None:
            size = struct.unpack_from(">II", body, 4)
        if kind == b"IEND":
            break
        position = end + 4
    if size is None:
        raise ImageConversionError("corrupt", "the PNG states no picture size")
    return size[0], size[1]


def _truncated(kind: str, have: int) -> ImageConversionError:
    return ImageConversionError(
        "truncated", f"the {kind} ends after {have} bytes, before its picture does"
    )
