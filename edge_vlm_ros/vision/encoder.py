"""The door between camera pixels and projected embeddings: the ``Encoder`` protocol."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import EncoderError

RgbImage = npt.NDArray[np.uint8]
"""uint8 [height, width, 3], red first."""

Embeddings = npt.NDArray[np.float32]
"""float32 [n_tokens, n_embd], ready for the language model."""


class Encoder(Protocol):
    """Turns one preprocessed camera frame into projected embeddings.

    An encoder is used by one thread at a time (its vision worker).
    """

    @property
    def identity(self) -> bytes:
        """Digest of all that decides the output for given pixels: file, preprocessing, backend."""
        ...

    @property
    def input_size(self) -> tuple[int, int]:
        """(height, width) in pixels that ``encode`` expects."""
        ...

    @property
    def n_tokens(self) -> int:
        """Rows of the embeddings of one frame."""
        ...

    @property
    def n_embd(self) -> int:
        """Columns of the embeddings: the language model's embedding width."""
        ...

    @property
    def backend(self) -> str:
        """What runs the encoder, in words for people and diagnostics."""
        ...

    def encode(self, rgb: RgbImage) -> Embeddings:
        """Encode one frame.

        Args:
            rgb: uint8 [height, width, 3] of ``input_size``.

        Returns:
            float32 [n_tokens, n_embd], all finite.

        Raises:
            EncoderError: wrong shape or dtype, a failing backend, or a result that is not usable.
        """
        ...

    def close(self) -> None:
        """Free the backend. Calling it again does nothing; ``encode`` fails afterwards."""
        ...


def check_pixels(rgb: RgbImage, size: tuple[int, int]) -> None:
    """Raise ``EncoderError`` unless ``rgb`` is uint8 [size[0], size[1], 3]."""
    expected = (*size, 3)
    if not isinstance(rgb, np.ndarray):
        raise EncoderError(f"the encoder takes a NumPy array of pixels, not {type(rgb).__name__}")
    if rgb.dtype != np.uint8:
        raise EncoderError(
            f"the encoder takes uint8 pixels (0 to 255), not {rgb.dtype}; convert them first"
        )
    if rgb.shape != expected:
        raise EncoderError(
            f"the encoder takes pixels of shape {expected} [height, width, RGB], "
            f"not {rgb.shape}; bring the frame to that size with resize_rgb first"
        )


def check_embeddings(array: npt.NDArray[np.generic], n_tokens: int, n_embd: int) -> Embeddings:
    """Return ``array`` as float32 [n_tokens, n_embd], or raise ``EncoderError``.

    NPU runtimes have returned a wrong shape or inf without reporting a failure, so every result
    is looked at.
    """
    if array.shape != (n_tokens, n_embd):
        raise EncoderError(
            f"the encoder gave embeddings of shape {array.shape}, but the model profile says "
            f"({n_tokens}, {n_embd}) [n_tokens, n_embd]; correct the profile or the model file"
        )
    embeddings = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.isfinite(embeddings)
    if not finite.all():
        bad = int(embeddings.size - np.count_nonzero(finite))
        raise EncoderError(
            f"the encoder gave {bad} of {embeddings.size} values that are inf or nan; "
            "its backend computes this model wrongly (try another precision or another backend)"
        )
    return embeddings
