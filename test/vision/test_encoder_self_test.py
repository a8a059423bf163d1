from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from vision_helpers import FakeEncoder, frame

from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.self_test import self_test


def picture() -> np.ndarray:
    rgb = frame(10)
    rgb[:, :, 1] = 90
    return rgb


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    path = tmp_path / "reference.npz"
    np.savez(path, rgb=picture(), embeddings=FakeEncoder().encode(picture()))
    return path


def test_the_right_encoder_passes(reference: Path) -> None:
    result = self_test(FakeEncoder(), reference)
    assert result.passed and result.cosine == pytest.approx(1.0) and result.max_abs_error == 0.0


def test_small_errors_pass_and_large_ones_do_not(reference: Path) -> None:
    encoder = FakeEncoder()
    right = encoder.encode(picture())
    encoder.encode = lambda rgb: right + np.float32(1.0)
    result = self_test(encoder, reference)
    assert result.passed and result.max_abs_error == pytest.approx(1.0)
    encoder.encode = lambda rgb: right + np.float32(20.0)
    result = self_test(encoder, reference)
    assert not result.passed and 0.9 < result.cosine < 0.99
    assert "fake computes this model wrongly" in result.message


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_one_value_that_is_not_finite_fails(reference: Path, value: float) -> None:
    encoder = FakeEncoder()
    wrong = encoder.encode(picture())
    wrong[1, 1] = value
    encoder.encode = lambda rgb: wrong
    result = self_test(encoder, reference)
    assert not result.passed and math.isnan(result.cosine) and "inf or nan" in result.message


def test_all_zeros_fail(reference: Path) -> None:
    encoder = FakeEncoder()
    encoder.encode = lambda rgb: np.zeros((2, 3), np.float32)
    assert not self_test(encoder, reference).passed


def test_an_encoder_that_raises_fails(reference: Path) -> None:
    encoder = FakeEncoder()

    def refuse(rgb):
        raise EncoderError("no device")

    encoder.encode = refuse
    result = self_test(encoder, reference)
    assert not result.passed and "no device" in result.message


def test_unusable_references_fail_with_what_to_do(tmp_path: Path) -> None:
    missing = self_test(FakeEncoder(), tmp_path / "missing.npz")
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    incomplete = tmp_path / "incomplete.npz"
    np.savez(incomplete, rgb=frame(1))
    doubles = tmp_path / "doubles.npz"
    np.savez(doubles, rgb=frame(1), embeddings=np.zeros((2, 3)))
    shaped = tmp_path / "shaped.npz"
    np.savez(shaped, rgb=frame(1), embeddings=np.ones((3, 3), np.float32))
    assert not missing.passed and "make_encoder_reference" in missing.message
    for path in (text, incomplete, doubles, shaped):
        result = self_test(FakeEncoder(), path)
        assert not result.passed and str(path) in result.message
