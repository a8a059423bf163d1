from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_vlm_ros.model_profile import EncoderProfile, OnnxBackend, load_profile
from edge_vlm_ros.vision import opening
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder
from edge_vlm_ros.vision.opening import open_encoder, open_untested

PROFILE = load_profile(
    Path(__file__).resolve().parents[2] / "config" / "models" / "demo.yaml"
).encoder
GOOD = PROFILE.backends[0]
MISSING = GOOD.model_copy(update={"file": Path("/nowhere/vision.onnx")})
CUDA = GOOD.model_copy(update={"provider": "cuda"})


def with_backends(*backends: OnnxBackend, **fields: object) -> EncoderProfile:
    return PROFILE.model_copy(update={"backends": backends, **fields})


def reference(folder: Path, factor: float) -> Path:
    with np.load(PROFILE.reference) as stored:
        rgb, embeddings = stored["rgb"], stored["embeddings"]
    path = folder / "reference.npz"
    np.savez(path, rgb=rgb, embeddings=factor * embeddings)
    return path


def test_the_first_backend_that_works_is_used_and_the_others_say_why_not() -> None:
    opened = open_encoder(with_backends(MISSING, CUDA, GOOD))
    assert [e.backend for e in opened.encoders] == ["ONNX Runtime, CPU, 1 thread"]
    assert opened.self_test.passed
    assert "/nowhere/vision.onnx" in opened.refused[0]
    assert "CUDAExecutionProvider" in opened.refused[1] and "provider cpu" in opened.refused[1]
    opened.close()
    assert open_encoder(with_backends(GOOD, MISSING)).refused == ()


def test_a_backend_that_computes_wrongly_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []

    class Wrong(OnnxEncoder):
        def encode(self, rgb: np.ndarray) -> np.ndarray:
            return -super().encode(rgb)

        def close(self) -> None:
            closed.append(self)
            super().close()

    made = iter([Wrong, OnnxEncoder])
    monkeypatch.setattr(opening, "OnnxEncoder", lambda *a, **k: next(made)(*a, **k))
    opened = open_encoder(with_backends(GOOD, GOOD))
    assert type(opened.encoders[0]) is OnnxEncoder and opened.self_test.passed
    assert len(closed) == 1
    (reason,) = opened.refused
    assert "cosine -1.0" in reason and "computes this model wrongly" in reason


def test_what_computes_wrongly_is_never_used(tmp_path: Path) -> None:
    wrong = with_backends(MISSING, GOOD, GOOD, reference=reference(tmp_path, -1.0))
    with pytest.raises(EncoderError, match=r"/nowhere.*cosine -1.*another model file.*cosine -1"):
        open_encoder(wrong)


def test_when_none_starts_every_reason_is_given() -> None:
    with pytest.raises(EncoderError, match=r"/nowhere.*CUDAExecution"):
        open_encoder(with_backends(MISSING, CUDA))


def test_without_a_reference_finite_numbers_are_enough() -> None:
    opened = open_encoder(with_backends(GOOD, reference=None))
    assert opened.self_test.passed and np.isnan(opened.self_test.cosine)
    assert "no reference" in opened.self_test.message


def test_for_a_new_reference_the_old_one_does_not_count(tmp_path: Path) -> None:
    encoder = open_untested(with_backends(MISSING, GOOD, reference=reference(tmp_path, -1.0)))
    assert encoder.backend == "ONNX Runtime, CPU, 1 thread"
