from __future__ import annotations

import cv2
import numpy as np
import pytest

from edge_vlm_ros.vision.errors import PreprocessError
from edge_vlm_ros.vision.preprocess import pixel_digest, resize_rgb


def gradient(height: int, width: int) -> np.ndarray:
    """Column number in red, row number in green."""
    rgb = np.zeros((height, width, 3), dtype=np.uint8)
    rgb[:, :, 0] = np.linspace(0, 255, width).astype(np.uint8)
    rgb[:, :, 1] = np.linspace(0, 255, height).astype(np.uint8)[:, np.newaxis]
    return rgb


@pytest.mark.parametrize("policy", ["stretch", "center_crop", "pad"])
def test_matching_size_leaves_the_bytes_alone(policy: str) -> None:
    rgb = np.random.default_rng(1).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    assert resize_rgb(rgb, (24, 32), policy).tobytes() == rgb.tobytes()


def test_a_view_comes_back_contiguous() -> None:
    rgb = np.random.default_rng(1).integers(0, 256, (24, 64, 3), dtype=np.uint8)[:, ::2]
    result = resize_rgb(rgb, (24, 32), "stretch")
    assert result.flags.c_contiguous
    assert np.array_equal(result, rgb)


@pytest.mark.parametrize("policy", ["stretch", "center_crop", "pad"])
@pytest.mark.parametrize("size", [(224, 224), (96, 300), (700, 900), (1, 1), (10, 900)])
def test_every_policy_gives_the_wanted_size(policy: str, size: tuple[int, int]) -> None:
    result = resize_rgb(gradient(480, 640), size, policy)
    assert result.shape == (*size, 3)
    assert result.dtype == np.uint8
    assert result.flags.c_contiguous


def test_stretch_averages_areas_when_shrinking_and_interpolates_when_enlarging() -> None:
    rgb = gradient(48, 64)
    small = cv2.resize(rgb, (16, 12), interpolation=cv2.INTER_AREA)
    large = cv2.resize(rgb, (160, 120), interpolation=cv2.INTER_LINEAR)
    mixed = cv2.resize(rgb, (16, 120), interpolation=cv2.INTER_LINEAR)
    assert np.array_equal(resize_rgb(rgb, (12, 16), "stretch"), small)
    assert np.array_equal(resize_rgb(rgb, (120, 160), "stretch"), large)
    assert np.array_equal(resize_rgb(rgb, (120, 16), "stretch"), mixed)


def test_center_crop_cuts_the_middle() -> None:
    rgb = gradient(480, 640)
    assert np.array_equal(resize_rgb(rgb, (480, 480), "center_crop"), rgb[:, 80:560])
    tall = gradient(640, 480)
    assert np.array_equal(resize_rgb(tall, (480, 480), "center_crop"), tall[80:560])
    assert np.array_equal(
        resize_rgb(rgb, (224, 224), "center_crop"),
        cv2.resize(rgb[:, 80:560], (224, 224), interpolation=cv2.INTER_AREA),
    )


def test_pad_keeps_the_whole_picture_in_the_middle() -> None:
    rgb = np.full((100, 200, 3), 255, dtype=np.uint8)
    result = resize_rgb(rgb, (200, 200), "pad", pad_value=7)
    assert (result[:50] == 7).all()
    assert (result[50:150] == 255).all()
    assert (result[150:] == 7).all()
    assert not (resize_rgb(rgb, (200, 200), "pad")[:50]).any()


@pytest.mark.parametrize(
    ("pixels", "size", "policy", "pad", "words"),
    [
        (np.zeros((4, 4, 3), np.float32), (2, 2), "stretch", 0, "uint8"),
        ([[1]], (2, 2), "stretch", 0, "list"),
        (np.zeros((4, 4), np.uint8), (2, 2), "stretch", 0, "shape"),
        (np.zeros((4, 4, 4), np.uint8), (2, 2), "stretch", 0, "shape"),
        (np.zeros((0, 4, 3), np.uint8), (2, 2), "stretch", 0, "shape"),
        (np.zeros((4, 4, 3), np.uint8), (0, 2), "stretch", 0, "size"),
        (np.zeros((4, 4, 3), np.uint8), (2, 2), "fit", 0, "center_crop"),
        (np.zeros((4, 4, 3), np.uint8), (2, 2), "pad", 256, "pad_value"),
    ],
)
def test_refusals_name_what_is_wrong(pixels, size, policy, pad, words: str) -> None:
    with pytest.raises(PreprocessError, match=words):
        resize_rgb(pixels, size, policy, pad)


def test_digest_tells_pixels_and_shapes_apart() -> None:
    rgb = gradient(6, 8)
    other = rgb.copy()
    other[5, 7, 2] ^= 1
    assert pixel_digest(rgb) == pixel_digest(rgb.copy())
    assert pixel_digest(rgb) != pixel_digest(other)
    assert pixel_digest(rgb) != pixel_digest(rgb.reshape(8, 6, 3))
    assert pixel_digest(rgb[:, ::2]) == pixel_digest(rgb[:, ::2].copy())
