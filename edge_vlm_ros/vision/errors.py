"""Errors of the vision package. Every text says what was wrong and what to do about it."""

from __future__ import annotations


class VisionError(Exception):
    """Base of all errors raised by ``edge_vlm_ros.vision``."""


class PreprocessError(VisionError, ValueError):
    """Pixels that cannot be brought to an encoder's input size."""


class EncoderError(VisionError):
    """An encoder that cannot be built, or a frame that it cannot encode."""


class CacheError(VisionError):
    """A misuse of the embedding cache, such as unpinning what was never pinned."""


class WorkerClosedError(VisionError):
    """A request handed to a vision worker that has been closed."""
