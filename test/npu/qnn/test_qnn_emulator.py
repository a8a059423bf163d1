"""QnnEncoder with Qualcomm's own library, on its emulator of the QCS6490's NPU.

The demo encoder is converted first, with 16-bit and with 8-bit activations.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from qnn_helpers import (
    DEMO,
    Scene,
    all_frames,
    answers,
    encode,
    float_embeddings,
    heldout,
    profile_with,
)

from edge_vlm_ros.model_profile import load_profile
from tools.convert_encoder.pictures import compare
from tools.convert_encoder.qdq import (
    HtpCompilation,
    QdqConversion,
    convert_qdq,
    demo_pictures,
    split,
)

pytestmark = [
    pytest.mark.skipif(
        "EDGE_VLM_ROS_TEST_QNN" not in os.environ,
        reason="needs onnxruntime-qnn, which `make test-qnn` installs for these tests",
    ),
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="Qualcomm's NPU emulator exists for x86-64 only"
    ),
    pytest.mark.timeout(900),
]
PROFILE = load_profile(DEMO).encoder
NOTHING = np.zeros((0, 224, 224, 3), np.uint8)
EMULATED = "Qualcomm HTP v68, emulated on x86-64"
ITEMS, MOST_FRAMES = 12, 3


@dataclass(frozen=True)
class Converted:
    bits: str
    file: Path
    compiled: Path
    conversion: QdqConversion
    cache: Path
    """The user's cache folder in the tests of this file: what is compiled is found again."""


@pytest.fixture(scope="module", params=["w8a16", "w8a8"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    file, compiled = folder / "vision.onnx", folder / "vision.htp.onnx"
    conversion = convert_qdq(
        DEMO,
        file,
        *split(demo_pictures(PROFILE, 48)),
        bits=request.param,
        compilation=HtpCompilation(compiled, pictures=1),
    )
    (folder / "cache").mkdir()
    return Converted(request.param, file, compiled, conversion, folder / "cache")


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return heldout(ITEMS, MOST_FRAMES)


def compiled_files(cache: Path) -> dict[Path, int]:
    """Of the encoder, with the time of their last change."""
    return {path: path.stat().st_mtime_ns for path in (cache / "edge_vlm_ros").rglob("*.onnx")}


def test_the_converters_report(converted: Converted) -> None:
    conversion = converted.conversion
    assert len(conversion.on_cpu) == 12 and len(conversion.on_npu) == 1
    assert conversion.worst >= 0.99
    assert converted.file.stat().st_size < 0.6 * PROFILE.backends[0].file.stat().st_size
    # The picture is in both lists: the NPU computes what the quantised model says.
    assert abs(conversion.on_npu[0].cosine - conversion.on_cpu[0].cosine) < 0.001


def test_cosine_and_heldout_answers(
    converted: Converted, scenes: list[Scene], capsys: pytest.CaptureFixture[str]
) -> None:
    frames = all_frames(scenes)
    found, ended = encode(
        profile_with(converted.cache, {"file": str(converted.file)}), frames, converted.cache
    )
    assert found is not None, ended.stderr
    assert found.facts["backend"] == EMULATED and found.facts["refused"] == []
    assert found.facts["passed"] and found.facts["cosine"] >= 0.99, found.facts["message"]
    expected = float_embeddings(frames)
    cosines = [compare(a, b).cosine for a, b in zip(found.embeddings, expected, strict=True)]
    truths = [scene.item.answer for scene in scenes]
    on_npu, on_cpu = answers(scenes, found.embeddings), answers(scenes, expected)
    right = sum(a == b for a, b in zip(on_npu, truths, strict=True))
    right_on_cpu = sum(a == b for a, b in zip(on_cpu, truths, strict=True))
    with capsys.disabled():
        print(
            f"\n{converted.bits} on {EMULATED}: self-test cosine {found.facts['cosine']:.6f}, "
            f"{len(frames)} held-out frames worst {min(cosines):.6f} mean {np.mean(cosines):.6f}; "
            f"answers right {right} of {len(scenes)} (float encoder on the CPU: {right_on_cpu}); "
            f"start {found.facts['open_s']:.1f} s, {found.facts['encode_s']:.1f} s a frame"
        )
    assert min(cosines) >= 0.99
    assert right >= right_on_cpu - 1 and right_on_cpu >= len(scenes) - 1


def test_what_was_compiled_is_used_again_and_made_again_when_damaged(converted: Converted) -> None:
    profile = profile_with(converted.cache, {"file": str(converted.file)})
    picture = demo_pictures(PROFILE, 1)
    first, ended = encode(profile, picture, converted.cache)
    assert first is not None, ended.stderr
    files = compiled_files(converted.cache)
    (file,) = files
    again, ended = encode(profile, picture, converted.cache)
    assert again is not None, ended.stderr
    assert compiled_files(converted.cache) == files
    assert np.array_equal(first.embeddings, again.embeddings)
    assert first.facts["identity"] == again.facts["identity"]

    damaged = bytearray(file.read_bytes())
    for index in range(len(damaged) // 2, len(damaged) // 2 + 2000):
        damaged[index] ^= 0x5A
    file.write_bytes(damaged)  # QNN would load this and compute something
    repaired, ended = encode(profile, picture, converted.cache)
    assert repaired is not None, ended.stderr
    assert "it is damaged" in ended.stderr
    assert np.array_equal(first.embeddings, repaired.embeddings)


def test_a_compiled_file_can_be_the_profiles(converted: Converted, tmp_path: Path) -> None:
    picture = demo_pictures(PROFILE, 1)
    profile = profile_with(tmp_path, {"file": str(converted.compiled)})
    found, ended = encode(profile, picture, tmp_path)
    assert found is not None, ended.stderr
    assert found.facts["backend"] == EMULATED and found.facts["passed"]
    assert compiled_files(tmp_path) == {}


def test_a_float_model_is_refused_and_the_cpu_takes_over(tmp_path: Path) -> None:
    float_file = str(PROFILE.backends[0].file)
    found, ended = encode(
        profile_with(tmp_path, {"file": float_file}, with_cpu=True), NOTHING, tmp_path
    )
    assert found is not None, ended.stderr
    assert found.facts["backend"] == "ONNX Runtime, CPU, 1 thread" and found.facts["passed"]
    (reason,) = found.facts["refused"]
    assert "not quantised" in reason and "tools.convert_encoder qdq" in reason
    assert ended.stderr == ""  # the library's pages of operations are not shown


def test_an_unknown_processor_is_refused(converted: Converted, tmp_path: Path) -> None:
    profile = profile_with(tmp_path, {"file": str(converted.file), "soc_model": 9999})
    found, ended = encode(profile, NOTHING, tmp_path)
    assert found is None
    assert "the NPU does not start with soc_model 9999, htp_arch 68" in ended.stderr
    assert "QNN SetupBackend failed" in ended.stderr  # where the message says it is


def test_a_truncated_model_is_refused(converted: Converted, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(converted.file.read_bytes()[:1_000_000])
    found, ended = encode(profile_with(tmp_path, {"file": str(damaged)}), NOTHING, tmp_path)
    assert found is None
    assert "EncoderError" in ended.stderr and str(damaged) in ended.stderr
