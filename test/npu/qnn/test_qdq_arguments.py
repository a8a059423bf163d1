"""What the QDQ converter refuses before it starts, and how it splits and reports."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from qnn_helpers import DEMO, ROOT

from edge_vlm_ros.model_profile import load_profile
from tools.convert_encoder import qdq
from tools.convert_encoder.pictures import Comparison, compare
from tools.setup import npu_qnn
from tools.setup.progress import Failed

PROFILE = load_profile(DEMO).encoder


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def ensure() -> Path:
        raise Failed("it would have started")

    monkeypatch.setattr(npu_qnn, "ensure", ensure)


def other_profile(folder: Path, *replaced: tuple[str, str]) -> Path:
    text = DEMO.read_text().replace("../../models", str(ROOT / "models"))
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    path = folder / "other.yaml"
    path.write_text(text)
    return path


def said(capsys: pytest.CaptureFixture[str], *argv: Path | str) -> str:
    assert qdq.main([str(argument) for argument in argv]) == 1
    return capsys.readouterr().err


def test_the_demo_model_needs_no_pictures(tmp_path: Path, capsys) -> None:
    assert "it would have started" in said(capsys, DEMO, tmp_path / "out.onnx")


def test_other_models_need_pictures(tmp_path: Path, capsys) -> None:
    profile = other_profile(tmp_path, ("name: demo", "name: other"))
    assert "give --calibration" in said(capsys, profile, tmp_path / "out.onnx")


def test_a_folder_without_pictures(tmp_path: Path, capsys) -> None:
    said_ = said(capsys, DEMO, tmp_path / "out.onnx", "--calibration", tmp_path)
    assert f"{tmp_path} has no pictures" in said_


def test_too_few_pictures(tmp_path: Path, capsys) -> None:
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.zeros((300, 400, 3), np.uint8))
    said_ = said(capsys, DEMO, tmp_path / "out.onnx", "--calibration", tmp_path)
    assert "3 pictures are too few" in said_


def test_a_file_that_is_no_picture(tmp_path: Path, capsys) -> None:
    (tmp_path / "0.png").write_bytes(b"no")
    said_ = said(capsys, DEMO, tmp_path / "out.onnx", "--calibration", tmp_path)
    assert "0.png is not a picture" in said_


def test_a_profile_without_an_onnx_backend(tmp_path: Path, capsys) -> None:
    profile = other_profile(tmp_path, ("type: onnx ", "type: qnn "))
    assert "no backend of type onnx" in said(capsys, profile, tmp_path / "out.onnx")


def test_every_fourth_picture_is_held_back() -> None:
    pictures = np.arange(9, dtype=np.uint8).reshape(9, 1, 1, 1)
    calibration, held_back = qdq.split(pictures)
    assert calibration.ravel().tolist() == [0, 1, 2, 4, 5, 6, 8]
    assert held_back.ravel().tolist() == [3, 7]


def test_demo_pictures_are_all_different_and_as_large_as_the_encoder_takes() -> None:
    pictures = qdq.demo_pictures(PROFILE, 4)
    assert pictures.shape == (4, 224, 224, 3) and pictures.dtype == np.uint8
    assert len({picture.tobytes() for picture in pictures}) == 4


def test_the_worst_picture_and_token_are_reported() -> None:
    expected = np.eye(3, 4, dtype=np.float32)
    near = expected + np.float32(0.01)
    turned = expected.copy()
    turned[2] = [0, 1, 0, 0]
    worse = compare(turned, expected)
    assert worse.cosine == pytest.approx(2 / 3) and worse.worst_token == pytest.approx(0)
    assert worse.max_abs_error == 1
    conversion = qdq.QdqConversion((compare(near, expected), worse), (Comparison(0.5, 0.25, 2),))
    assert conversion.worst == 0.5
    on_cpu, on_npu = qdq.report(conversion).splitlines()[1:]
    assert on_cpu.split()[3:5] == ["2", "0.666667"] and on_npu.split()[3:] == [
        "1", "0.500000", "0.500000", "0.250000",
    ]  # fmt: skip
