"""The converter to .rknn without the vendor's toolkit: what it hands over, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_vlm_ros.model_profile import load_profile
from tools.convert_encoder import __main__ as command
from tools.convert_encoder import rknn_conversion
from tools.convert_encoder.pictures import compare, load_pictures
from tools.convert_encoder.rknn_conversion import convert_rknn, main, onnx_backend
from tools.setup import npu_rknn, npu_venv
from tools.setup.progress import Failed

PROFILE = Path(__file__).resolve().parents[2] / "config" / "models" / "demo.yaml"
Toolkit = Callable[[str], None]

_PROCESS = """
import json, sys, numpy as np
job = json.load(open(sys.argv[1]))
json.dump(job, open({job!r}, "w"))
pictures = np.load(job["pictures"])
{body}
"""
_WRITE = """
open(job["out"], "wb").write(b"RKNN")
reference = np.load({reference!r})["embeddings"]
np.save(job["embeddings"], np.stack([reference * {factor}] * len(pictures)))
"""


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Toolkit:
    """Puts a script in the place of the toolkit's process; its job is left in job.json."""
    monkeypatch.setattr(npu_rknn, "ensure", lambda: Path(sys.executable))

    def put(body: str) -> None:
        script = tmp_path / "process.py"
        script.write_text(_PROCESS.format(job=str(tmp_path / "job.json"), body=body))
        monkeypatch.setattr(rknn_conversion, "_PROCESS", script)

    return put


def writes(factor: float) -> str:
    reference = load_profile(PROFILE).encoder.reference
    return _WRITE.format(reference=str(reference), factor=factor)


def test_a_good_conversion_gets_its_name(
    toolkit: Toolkit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toolkit(writes(1.0))
    assert main([str(PROFILE), str(tmp_path / "out.rknn")]) == 0
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.rknn"]
    printed = capsys.readouterr().out
    assert "1.000000" in printed and "- type: rknn" in printed
    job = json.loads((tmp_path / "job.json").read_text())
    # (pixel / 255 - 0) / 1 in the toolkit's terms
    assert np.allclose(job["mean"], 0) and np.allclose(job["std"], 255)
    assert job["target"] == "rk3588" and job["dataset"] is None


def test_a_bad_conversion_does_not(
    toolkit: Toolkit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toolkit(writes(-1.0))
    assert main([str(PROFILE), str(tmp_path / "out.rknn")]) == 1
    assert not (tmp_path / "out.rknn").exists()
    assert "worst cosine is -1.0000" in capsys.readouterr().err


def test_a_process_that_aborts_is_told(
    toolkit: Toolkit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toolkit("import os; print('Not Support Dtype', flush=True); os.abort()")
    assert main([str(PROFILE), str(tmp_path / "out.rknn")]) == 1
    printed = capsys.readouterr().err
    assert "exit code -6" in printed and "Not Support Dtype" in printed
    assert "up to opset 19" in printed


def test_calibration_pictures_are_handed_over(toolkit: Toolkit, tmp_path: Path) -> None:
    profile = load_profile(PROFILE).encoder.model_copy(
        update={"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1)}
    )
    red = np.zeros((2, 224, 224, 3), np.uint8)
    red[..., 0] = 200
    toolkit(
        "import os, shutil\n"
        f"shutil.copytree(os.path.dirname(job['dataset']), {str(tmp_path / 'seen')!r})\n"
        + writes(1.0)
    )
    backend = onnx_backend(profile)
    convert_rknn(profile, backend, tmp_path / "o.rknn", red[:1], calibration=red)
    names = (tmp_path / "seen" / "dataset.txt").read_text().split()
    assert names == ["0.png", "1.png"]
    bgr = cv2.imread(str(tmp_path / "seen" / "1.png"))
    assert bgr.shape == (224, 224, 3) and bgr[0, 0].tolist() == [0, 0, 200]
    job = json.loads((tmp_path / "job.json").read_text())
    assert np.allclose(job["mean"], [127.5, 102, 76.5]) and np.allclose(job["std"], [51, 51, 25.5])


def test_channels_last_is_refused(tmp_path: Path) -> None:
    profile = load_profile(PROFILE).encoder
    backend = onnx_backend(profile).model_copy(update={"layout": "nhwc"})
    with pytest.raises(Failed, match="NCHW"):
        convert_rknn(profile, backend, tmp_path / "o.rknn", np.zeros((1, 224, 224, 3), np.uint8))


def test_pictures_come_as_the_encoder_gets_them(tmp_path: Path) -> None:
    profile = load_profile(PROFILE).encoder
    with pytest.raises(Failed, match="has no pictures"):
        load_pictures(tmp_path, profile, 5)
    with pytest.raises(Failed, match="has no pictures"):
        load_pictures(tmp_path / "nowhere", profile, 5)
    for name in ("b.png", "a.png", "c.png"):
        picture = np.full((480, 640, 3), ord(name[0]), np.uint8)
        picture[..., 0] = 0  # no blue
        cv2.imwrite(str(tmp_path / name), picture)
    pictures = load_pictures(tmp_path, profile, 2)
    assert pictures.shape == (2, 224, 224, 3)
    assert pictures[:, 5, 5].tolist() == [[97, 97, 0], [98, 98, 0]]
    (tmp_path / "0.png").write_bytes(b"no picture")
    with pytest.raises(Failed, match="0.png is not a picture"):
        load_pictures(tmp_path, profile, 2)


def test_a_comparison_finds_the_worst_token() -> None:
    expected = np.eye(3, dtype=np.float32)
    actual = expected.copy()
    actual[2] = [0, 3, 4]
    found = compare(actual, expected)
    assert found.worst_token == pytest.approx(0.8)
    assert found.max_abs_error == 3
    assert found.cosine == pytest.approx(6 / np.sqrt(27 * 3))
    assert compare(np.zeros((3, 3), np.float32), expected).cosine == 0


def test_the_command_names_its_converters(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 2
    assert "rknn PROFILE" in capsys.readouterr().err
    assert command.main(["--help"]) == 0
    for name in ("rknn", "qdq"):
        assert command.main([name, "nowhere.yaml", "out"]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"convert_encoder {name}: ") and "nowhere.yaml" in said


def test_the_toolkits_environment_is_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert npu_rknn.VENV.directory == tmp_path / "edge_vlm_ros" / "npu" / "rknn"
    monkeypatch.setattr(npu_venv.platform, "machine", lambda: "riscv64")
    with pytest.raises(Failed, match="riscv64; convert on another computer"):
        npu_rknn.ensure()
