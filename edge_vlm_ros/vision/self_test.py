"""Start-up check of an encoder against a picture and its embeddings stored with the model.

Boards have given inf where the vendor's simulator was right, without any error.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .encoder import Embeddings, Encoder, RgbImage, check_embeddings
from .errors import EncoderError

MIN_COSINE = 0.99


@dataclass(frozen=True)
class SelfTestResult:
    """Outcome of a self-test.

    Attributes:
        cosine: cosine similarity of all values, encoder against reference; nan if not computed.
        max_abs_error: largest absolute difference of one value; nan if not computed.
        passed: every value finite and, with a reference, cosine >= 0.99.
        message: the outcome for people; when it did not pass, with what to do.
    """

    cosine: float
    max_abs_error: float
    passed: bool
    message: str


def self_test(encoder: Encoder, reference_path: Path | None) -> SelfTestResult:
    """Encode the reference picture and compare; without one, see whether noise gives numbers.

    Args:
        encoder: the encoder to test; used on the calling thread.
        reference_path: npz with ``rgb`` uint8 [h, w, 3] and ``embeddings`` float32
            [n_tokens, n_embd], as ``tools/make_encoder_reference.py`` writes it; or None.

    Returns:
        The outcome; failures of any kind are reported in it, not raised.
    """
    if reference_path is None:
        return _noise_test(encoder)
    try:
        rgb, expected = _load_reference(reference_path)
        actual = encoder.encode(rgb)
    except EncoderError as error:
        return _failure(f"encoder self-test failed: {error}")
    if actual.shape != expected.shape:
        return _failure(
            f"encoder self-test failed: {reference_path} holds embeddings of shape "
            f"{expected.shape}, the encoder gives {actual.shape}; make the reference again"
        )
    if not np.isfinite(actual).all():
        return _failure("encoder self-test failed: the encoder gave inf or nan")
    cosine = _cosine(actual, expected)
    largest = float(np.max(np.abs(actual - expected)))
    passed = cosine >= MIN_COSINE
    outcome = f"cosine {cosine:.6f} (at least {MIN_COSINE}), largest error {largest:.3g}"
    if passed:
        return SelfTestResult(cosine, largest, True, f"encoder self-test passed: {outcome}")
    return SelfTestResult(
        cosine,
        largest,
        False,
        f"encoder self-test failed: {outcome}; {encoder.backend} computes this model wrongly, "
        "or the reference belongs to another model file",
    )


def _noise_test(encoder: Encoder) -> SelfTestResult:
    pixels = np.random.default_rng(0).integers(0, 256, (*encoder.input_size, 3), dtype=np.uint8)
    try:
        check_embeddings(encoder.encode(pixels), encoder.n_tokens, encoder.n_embd)
    except EncoderError as error:
        return _failure(f"encoder self-test failed: {error}")
    nan = float("nan")
    text = (
        "encoder self-test passed: all values are finite; the model profile has no reference to "
        "compare with (tools/make_encoder_reference.py makes one)"
    )
    return SelfTestResult(nan, nan, True, text)


def _load_reference(path: Path) -> tuple[RgbImage, Embeddings]:
    try:
        with np.load(path, allow_pickle=False) as reference:
            rgb, embeddings = reference["rgb"], reference["embeddings"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise EncoderError(
            f"cannot read the reference {path} ({error}); make it with "
            "tools/make_encoder_reference.py"
        ) from error
    if embeddings.dtype != np.float32 or not np.isfinite(embeddings).all():
        raise EncoderError(
            f"the reference {path} must hold finite float32 embeddings; make it again"
        )
    return rgb, embeddings


def _cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    x, y = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norm if norm > 0 else 0.0


def _failure(message: str) -> SelfTestResult:
    return SelfTestResult(float("nan"), float("nan"), False, message)
