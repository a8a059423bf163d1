"""Our encoder with the real RKNNLite, in aarch64 Python under qemu: run by `make test-qemu`.

The NPU runtime is a stand-in that replays what the vendor's simulator computed, or fails as told.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rknn_board import BOARD, DRIVER, LIBRARY, board, run_on
from rknn_demo import Demo

from edge_vlm_ros.vision.self_test import MIN_COSINE
from tools.convert_encoder.pictures import compare

pytestmark = pytest.mark.skipif(
    "EDGE_VLM_ROS_TEST_QEMU" not in os.environ,
    reason="needs qemu-user, an aarch64 Python and Rockchip's rknn-toolkit2: run `make test-qemu`",
)

N_FRAMES = 4
START_CODES = [("init", -code) for code in (*range(1, 9), 10, 11, 12, 13)] + [
    ("mask", -5),
    ("version", -5),
    ("outputs", -9),
    ("run", -7),
]
FRAME_CODES = [("run", -code) for code in (1, 2, 3, 7)] + [("inputs", -8), ("outputs", -9)]


@pytest.fixture(scope="module")
def report(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of all that one process does on a board with the stand-in runtime."""
    folder = tmp_path_factory.mktemp("qemu")
    frames, expected = _replay(demo, folder)
    job = _job(demo, folder, contexts=2) | {
        "environment": {
            "STAND_IN_OUTPUTS": str(folder / "outputs.bin"),
            "STAND_IN_SHAPE": "224,224,49,256",
        },
        "frames": str(folder / "frames.npy"),
        "embeddings": str(folder / "embeddings.npy"),
        "start_codes": START_CODES,
        "frame_codes": FRAME_CODES,
    }
    np.save(folder / "frames.npy", frames)
    with board() as root:
        found = run_on(root, job, folder)
    assert found["error"] == ""
    found["comparisons"] = list(map(compare, np.load(folder / "embeddings.npy"), expected))
    return found


def _job(demo: Demo, folder: Path, contexts: int = 1) -> dict[str, Any]:
    profile = demo.profile.model_dump(mode="json")
    profile["backends"] = [{"type": "rknn", "file": str(demo.file), "contexts": contexts}]
    return {"profile": profile}


def _replay(demo: Demo, folder: Path) -> tuple[Any, Any]:
    """Write the outputs file: the stand-in finds a frame's by the value of its first byte. Returns
    frames with values that differ, and the simulator's embeddings of them."""
    pictures, simulated = demo.pictures, demo.conversion.simulated
    by_byte: dict[int, int] = {}
    for index in (len(pictures) - 2, len(pictures) - 1, *range(len(pictures) - 2)):
        by_byte.setdefault(int(pictures[index, 0, 0, 0]), index)
    outputs = np.zeros((256, *simulated[0].shape), np.float32)
    for value, index in by_byte.items():
        outputs[value] = simulated[index]
    outputs.tofile(folder / "outputs.bin")
    chosen = list(by_byte.values())[2:][:N_FRAMES]
    assert len(chosen) >= 2
    return pictures[chosen], [simulated[index] for index in chosen]


def test_simulated_embeddings_come_through(report: Any, say: Callable[[str], None]) -> None:
    worst = min(c.cosine for c in report["comparisons"])
    say(f"RKNNLite under qemu: {report['self_test']}; {report['backends']}; frames: {worst:.6f}")
    assert report["cosine"] >= MIN_COSINE
    assert worst > 0.9999999  # replayed, so bit for bit
    assert report["identities"] == 1
    assert "core 0" in report["backends"][0] and "core 1" in report["backends"][1]
    assert "API: 2.5.0 (stand-in" in report["backends"][0] and "DRV: 0.9.8" in report["backends"][0]


def test_logging_is_as_before(report: Any) -> None:
    assert report["levels"] == [logging.DEBUG, "ERROR"]


@pytest.mark.parametrize(("call", "code"), START_CODES)
def test_failures_at_the_start_are_told(report: Any, call: str, code: int) -> None:
    text = report["start"][f"{call} {code}"]
    assert text.startswith("the NPU c"), text
    remedies = ("vendor's kernel", "dmesg", "not enough memory", "convert", "cannot run")
    assert any(remedy in text for remedy in remedies), text
    if call == "init" and code in (-3, -6, -13):
        names = {-3: "DEVICE_UNAVAILABLE", -6: "MODEL_INVALID", -13: "TARGET_PLATFORM_UNMATCH"}
        assert names[code] in text, text
    if code == -13:
        assert "converted for RK3588, and this board is rk3588" in text, text


@pytest.mark.parametrize(("call", "code"), FRAME_CODES)
def test_failures_of_a_frame_are_told(report: Any, call: str, code: int) -> None:
    names = {-1: "FAIL", -2: "TIMEOUT", -3: "DEVICE_UNAVAILABLE", -7: "CTX_INVALID"} | {
        -8: "INPUT_INVALID",
        -9: "OUTPUT_INVALID",
    }
    assert f"RKNN_ERR_{names[code]}" in report["frame"][f"{call} {code}"]
    unwatched = report["frame_unwatched"][f"{call} {code}"]
    assert ("same embeddings" if call == "run" else names[code]) in unwatched


@pytest.mark.parametrize(
    ("lacking", "files", "said"),
    [
        ((BOARD, DRIVER, LIBRARY), {}, f"-v /{BOARD}:/{BOARD}"),
        ((DRIVER, LIBRARY), {}, f"container lacks /{LIBRARY}"),
        ((DRIVER,), {}, f"container lacks /{DRIVER}; start it with `--device /{DRIVER}"),
        ((LIBRARY,), {}, f"container lacks /{LIBRARY}; start it with `--device /{DRIVER}"),
        (
            (LIBRARY,),
            {LIBRARY: b"not a library"},
            "OSError: /usr/lib/librknnrt.so: file too short; put",
        ),
    ],
)
def test_without_an_npu(
    demo: Demo,
    tmp_path: Path,
    lacking: tuple[str, ...],
    files: dict[str, bytes],
    said: str,
    say: Callable[[str], None],
) -> None:
    """In a container: the marks of one cannot be hidden where these tests run in one."""
    with board(*lacking, files={".dockerenv": b""} | files) as root:
        report = run_on(root, _job(demo, tmp_path), tmp_path)
    say(report["error"])
    assert said in report["error"]
    assert report["levels"] == [logging.DEBUG, "ERROR"]


def test_on_this_computer(demo: Demo, say: Callable[[str], None]) -> None:
    from edge_vlm_ros.model_profile import EncoderProfile
    from edge_vlm_ros.vision.errors import EncoderError
    from edge_vlm_ros.vision.opening import open_encoder

    if platform.machine() == "aarch64":
        pytest.skip("this computer is aarch64; the sentence is for others")
    profile = EncoderProfile.model_validate(
        _job(demo, Path())["profile"], context={"folder": Path("/")}
    )
    with pytest.raises(EncoderError, match="Rockchip boards") as caught:
        open_encoder(profile)
    say(str(caught.value))
