"""Pictures that a converter calibrates an encoder with, and how near two encoders come on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from edge_vlm_ros.model_profile import EncoderProfile
from edge_vlm_ros.vision.encoder import Embeddings, RgbImage
from edge_vlm_ros.vision.preprocess import resize_rgb
from tools.setup.progress import Failed

_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}


@dataclass(frozen=True)
class Comparison:
    """Of two embeddings of one picture.

    Attributes:
        cosine: of all values.
        worst_token: the lowest cosine of a token.
        max_abs_error: the largest difference of a value.
    """

    cosine: float
    worst_token: float
    max_abs_error: float


def compare(actual: Embeddings, expected: Embeddings) -> Comparison:
    """Compare float32 [n_tokens, n_embd] with what it should be."""
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    tokens = (a * b).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float((a * b).sum()) / norm if norm > 0 else 0.0
    return Comparison(cosine, float(tokens.min()), float(np.abs(a - b).max()))


def load_pictures(folder: Path, profile: EncoderProfile, most: int) -> RgbImage:
    """The first ``most`` pictures of a folder by name, resized as camera frames are.

    Returns:
        uint8 [n, height, width, 3], n >= 1.

    Raises:
        Failed: there are none, or one cannot be read.
    """
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in _SUFFIXES)[:most]
    if not files:
        raise Failed(
            f"{folder} has no pictures ({', '.join(sorted(_SUFFIXES))}); save some dozens of "
            "frames of the robot's cameras there"
        )
    return np.stack([_resized(_read(file), profile) for file in files])


def reference_picture(profile: EncoderProfile) -> RgbImage:
    """The picture of the profile's reference, uint8 [1, height, width, 3].

    Raises:
        Failed: the profile has no reference, or it cannot be read.
    """
    if profile.reference is None:
        raise Failed("the profile has no encoder.reference; give a folder of pictures instead")
    try:
        with np.load(profile.reference, allow_pickle=False) as reference:
            rgb: RgbImage = reference["rgb"]
    except (OSError, ValueError, KeyError) as error:
        raise Failed(
            f"cannot read the reference {profile.reference} ({error}); make it with "
            "tools/make_encoder_reference.py"
        ) from error
    return rgb[np.newaxis]


def _read(file: Path) -> RgbImage:
    bgr = cv2.imread(str(file), cv2.IMREAD_COLOR)
    if bgr is None:
        raise Failed(f"{file} is not a picture that OpenCV reads; remove it")
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


def _resized(rgb: RgbImage, profile: EncoderProfile) -> RgbImage:
    return resize_rgb(rgb, profile.size, profile.resize, profile.pad_value)
