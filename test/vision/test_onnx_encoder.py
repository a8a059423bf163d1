from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_vlm_ros.model_profile import EncoderProfile, OnnxBackend, load_profile
from edge_vlm_ros.vision.encoder import Encoder, check_embeddings, check_pixels
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder
from edge_vlm_ros.vision.self_test import self_test

ROOT = Path(__file__).resolve().parents[2]
PROFILE = load_profile(ROOT / "config/models/demo.yaml").encoder


BACKEND = PROFILE.backends[0]


def changed(**fields) -> EncoderProfile:
    return PROFILE.model_copy(update=fields)


def opened(**fields) -> OnnxEncoder:
    """With other fields of the backend or of the profile."""
    own = {name: value for name, value in fields.items() if name in OnnxBackend.model_fields}
    rest = {name: value for name, value in fields.items() if name not in own}
    return OnnxEncoder(changed(**rest), BACKEND.model_copy(update=own))


@pytest.fixture(scope="module")
def encoder():
    encoder = OnnxEncoder(PROFILE, BACKEND)
    yield encoder
    encoder.close()


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    with np.load(PROFILE.reference) as reference:
        return reference["rgb"]


def test_it_is_an_encoder(encoder: OnnxEncoder) -> None:
    as_protocol: Encoder = encoder
    assert as_protocol.input_size == (224, 224)
    assert (as_protocol.n_tokens, as_protocol.n_embd) == (49, 256)
    assert len(as_protocol.identity) == 32
    assert as_protocol.backend == "ONNX Runtime, CPU, 1 thread"


def test_embeddings_equal_a_plain_onnxruntime_call(encoder: OnnxEncoder, picture) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(BACKEND.file), providers=["CPUExecutionProvider"])
    plain = (picture.astype(np.float32) / 255).transpose(2, 0, 1)[np.newaxis]
    (expected,) = session.run(["embeds"], {"image": plain})
    embeddings = encoder.encode(picture)
    assert embeddings.shape == (49, 256) and embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, expected[0], atol=1e-5)


def test_the_same_frame_gives_the_same_bits_with_any_thread_count(encoder, picture) -> None:
    two = OnnxEncoder(PROFILE, BACKEND, threads=2)
    assert np.array_equal(encoder.encode(picture), encoder.encode(picture))
    assert np.array_equal(encoder.encode(picture), two.encode(picture))
    assert two.identity == encoder.identity
    two.close()


def test_another_picture_gives_other_embeddings(encoder: OnnxEncoder, picture) -> None:
    mirrored = np.ascontiguousarray(picture[:, ::-1])
    assert not np.allclose(encoder.encode(picture), encoder.encode(mirrored), atol=0.01)


def test_mean_std_and_scale_are_applied_per_channel(picture) -> None:
    encoder = opened(scale=0.5, mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 8.0))
    value = encoder._model_input(picture)
    expected = (picture * 0.5 - np.array([1.0, 2.0, 3.0])) / np.array([4.0, 5.0, 8.0])
    assert value.shape == (1, 3, 224, 224) and value.dtype == np.float32
    np.testing.assert_allclose(value[0].transpose(1, 2, 0), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"scale": 0.5},
        {"mean": (0.5, 0.5, 0.5)},
        {"std": (2.0, 2.0, 2.0)},
        {"resize": "pad"},
        {"pad_value": 3},
    ],
)
def test_identity_changes_with_the_preprocessing(encoder: OnnxEncoder, fields) -> None:
    assert opened(**fields).identity != encoder.identity


def test_identity_follows_the_file_not_its_name(encoder: OnnxEncoder, tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(BACKEND.file.read_bytes())
    assert opened(file=copy).identity == encoder.identity
    producer_name = b"\x12\x01x"  # a field of the model file that computes nothing
    copy.write_bytes(BACKEND.file.read_bytes() + producer_name)
    assert opened(file=copy).identity != encoder.identity


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": "pixels"}, r"no input named 'pixels', only \['image'\]"),
        ({"output": "features"}, r"no output named 'features'"),
        ({"size": (224, 200)}, "encoder.size or layout"),
        ({"layout": "nhwc"}, "encoder.size or layout"),
        ({"n_tokens": 48}, "n_tokens or n_embd"),
        ({"n_embd": 255}, "n_tokens or n_embd"),
        ({"file": Path("/nowhere/vision.onnx")}, "no encoder file"),
    ],
)
def test_a_model_that_differs_from_its_profile_is_refused(fields, words: str) -> None:
    with pytest.raises(EncoderError, match=words):
        opened(**fields)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(BACKEND.file.read_bytes()[:100_000])
    with pytest.raises(EncoderError, match="cannot load"):
        opened(file=damaged)


def test_an_nvidia_gpu_that_this_onnxruntime_cannot_use_is_said() -> None:
    """It would compute on the CPU without a word."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("onnxruntime-gpu is installed here")
    words = "no CUDAExecutionProvider, only .*CPUExecutionProvider; install onnxruntime-gpu, or use"
    with pytest.raises(EncoderError, match=words):
        opened(provider="cuda")


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_gpu_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    with pytest.raises(EncoderError, match="could not start CUDAExecutionProvider.*driver"):
        opened(provider="cuda")


def test_thread_counts_below_one_are_refused() -> None:
    with pytest.raises(EncoderError, match="at least 1 thread"):
        OnnxEncoder(PROFILE, BACKEND, threads=0)


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.zeros((224, 224, 3), np.float32), "uint8"),
        (np.zeros((224, 200, 3), np.uint8), "resize_rgb"),
        (np.zeros((3, 224, 224), np.uint8), "shape"),
        (None, "NoneType"),
    ],
)
def test_wrong_pixels_are_refused(encoder: OnnxEncoder, pixels, words: str) -> None:
    with pytest.raises(EncoderError, match=words):
        encoder.encode(pixels)


def test_a_closed_encoder_says_so(picture) -> None:
    encoder = OnnxEncoder(PROFILE, BACKEND)
    encoder.close()
    encoder.close()
    with pytest.raises(EncoderError, match="closed"):
        encoder.encode(picture)


def test_importing_the_module_does_not_load_onnxruntime_and_telemetry_is_off() -> None:
    code = (
        "import os, sys\n"
        "import edge_vlm_ros.vision.onnx_encoder as module\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "from edge_vlm_ros.model_profile import load_profile\n"
        "profile = load_profile('config/models/demo.yaml').encoder\n"
        "module.OnnxEncoder(profile, profile.backends[0])\n"
        "assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


def test_checks_return_float32_and_refuse_what_is_not_finite() -> None:
    check_pixels(np.zeros((2, 3, 3), np.uint8), (2, 3))
    good = check_embeddings(np.ones((2, 3), np.float16), 2, 3)
    assert good.dtype == np.float32
    bad = np.ones((2, 3), np.float32)
    bad[1, 2] = np.nan
    with pytest.raises(EncoderError, match="1 of 6"):
        check_embeddings(bad, 2, 3)
    with pytest.raises(EncoderError, match="shape"):
        check_embeddings(np.ones((3, 2), np.float32), 2, 3)


def test_the_demo_model_passes_its_self_test(encoder: OnnxEncoder) -> None:
    result = self_test(encoder, PROFILE.reference)
    assert result.passed, result.message
    assert result.cosine > 0.9999 and result.max_abs_error < 0.01
    assert "passed" in result.message
    assert PROFILE.reference.stat().st_size < 300_000
