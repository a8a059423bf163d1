"""The one error of image conversion."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "empty",  # no data, or a width or height of zero
    "too_short",  # less data than the header promises
    "bad_step",  # a row step shorter than a row, or a width or height the encoding forbids
    "too_large",  # more pixels than allowed
    "unknown_encoding",  # not an encoding of sensor_msgs
    "unsupported_encoding",  # an encoding that is known, but not converted
    "depth",  # distances or other measurements, not colours
    "unknown_format",  # compressed data that is neither JPEG nor PNG
    "truncated",  # compressed data that ends too early
    "corrupt",  # compressed data that cannot be decoded
    "no_converter",  # neither cv_bridge nor rosbags-image is usable
    "internal",  # anything unforeseen
]


class ImageConversionError(Exception):
    """A camera message that cannot become an RGB picture.

    Attributes:
        reason: short code to count by.
        text: what was wrong and what to do about it.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(f"{text} [{reason}]")
        self.reason: Reason = reason
        self.text = text
