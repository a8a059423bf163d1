"""The encoder on Rockchip's NPU, with a stand-in for the vendor's library."""

from __future__ import annotations

import errno
import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rknn_helpers import Lite, NoWatchLite, install, profile_of
from vision_helpers import frame

from edge_vlm_ros.vision import rknn_encoder, rknn_library
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.opening import open_encoder
from edge_vlm_ros.vision.rknn_encoder import RknnEncoder, open_contexts


@pytest.fixture(autouse=True)
def logging_names() -> Iterator[None]:
    """The names of logging's levels must be whole after every test."""
    yield
    assert logging.getLevelName("DEBUG") == logging.DEBUG
    assert logging.getLevelName(logging.ERROR) == "ERROR"
    assert "E" not in logging._nameToLevel


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return tmp_path / "board"


def refusal(tmp_path: Path, **fields: Any) -> str:
    with pytest.raises(EncoderError) as caught:
        RknnEncoder(*profile_of(tmp_path, **fields))
    return str(caught.value)


def test_a_frame_is_fed_as_nhwc_uint8(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    lite = install(monkeypatch, board)
    encoder = RknnEncoder(*profile_of(tmp_path, core_mask="0_1_2"))
    out = encoder.encode(frame(2)[:, ::-1])  # not contiguous
    assert out.shape == (2, 3) and out.dtype == np.float32
    assert out.ravel().tolist() == [96 + k for k in range(6)]
    assert ("init", Lite.NPU_CORE_0_1_2) in lite.log
    assert lite.log[-1] == ("inference", (1, 4, 4, 3), np.dtype(np.uint8), ["nhwc"])
    assert encoder.backend == "RKNN, NPU cores 0, 1, 2, runtime API: 2.5.0 (stand-in), DRV: 0.9.8"


def test_contexts_have_a_core_each_and_one_identity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    lite = install(monkeypatch, board)
    profile, _ = profile_of(tmp_path, contexts=3)
    opened = open_encoder(profile)
    masks = [entry[1] for entry in lite.log if entry[0] == "init"]
    assert masks == [Lite.NPU_CORE_0, Lite.NPU_CORE_1, Lite.NPU_CORE_2]
    assert len({encoder.identity for encoder in opened.encoders}) == 1
    opened.close()
    opened.close()
    assert [entry[0] for entry in lite.log].count("release") == 3


def test_a_context_that_fails_closes_those_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    lite = install(monkeypatch, board)
    init = lite.init_runtime
    monkeypatch.setattr(
        lite, "init_runtime", lambda self, core_mask: init(self, core_mask) - (core_mask == 2)
    )
    with pytest.raises(EncoderError, match="on core 1"):
        open_contexts(*profile_of(tmp_path, contexts=3))
    assert [entry[0] for entry in lite.log].count("release") == 2


def test_the_runtime_version_is_part_of_the_identity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    lite = install(monkeypatch, board)
    first = RknnEncoder(*profile_of(tmp_path)).identity
    assert RknnEncoder(*profile_of(tmp_path)).identity == first
    monkeypatch.setattr(lite, "get_sdk_version", lambda self: "API: 9")
    assert RknnEncoder(*profile_of(tmp_path)).identity != first


def test_wrong_pixels_never_reach_the_runtime(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    lite = install(monkeypatch, board)
    encoder = RknnEncoder(*profile_of(tmp_path))
    calls = len(lite.log)
    for pixels in (frame(1, (4, 3)), frame(1).astype(np.float32), frame(1)[np.newaxis]):
        with pytest.raises(EncoderError):
            encoder.encode(pixels)
    assert len(lite.log) == calls
    encoder.close()
    with pytest.raises(EncoderError, match="closed"):
        encoder.encode(frame(1))


@pytest.mark.parametrize("call", ["make", "load", "init", "inference"])
def test_exceptions_at_the_start_become_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path, call: str
) -> None:
    lite = install(monkeypatch, board, fails_at=call)
    assert f"no {call} today" in refusal(tmp_path)
    assert call == "make" or lite.log[-1] == ("release",)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"load_code": -1}, "does not say why"),
        ({"init_code": -1}, "does not say why"),
        ({"init_code": None}, "does not say why"),
        ({"init_code": -1, "init_said": "no, not today"}, "Exception: no, not today; look for"),
        (
            {"init_code": -1, "init_said": "error code: RKNN_ERR_DEVICE_UNAVAILABLE"},
            "vendor's kernel",
        ),
        ({"init_code": -1, "init_said": "error code: RKNN_ERR_MALLOC_FAIL"}, "not enough memory"),
        ({"init_code": -1, "init_said": "error code: RKNN_ERR_MODEL_INVALID"}, "damaged"),
        (
            {
                "init_code": -1,
                "init_said": "error code: RKNN_ERR_TARGET_PLATFORM_UNMATCH",
                "platforms": ["RK3576"],
            },
            "converted for RK3576, and this board is rk3588",
        ),
    ],
)
def test_failures_at_the_start_are_explained(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    board: Path,
    behaviour: dict[str, Any],
    said: str,
) -> None:
    lite = install(monkeypatch, board, **behaviour)
    assert said in refusal(tmp_path)
    assert lite.log[-1] == ("release",)


@pytest.mark.parametrize(
    ("lacking", "in_container", "said"),
    [
        ("proc/device-tree/compatible", False, "not a Rockchip board"),
        ("proc/device-tree/compatible", True, "-v /proc/device-tree/compatible:"),
        ("usr/lib/librknnrt.so", False, "sudo cp librknnrt.so /usr/lib/"),
        ("usr/lib/librknnrt.so", True, "container lacks /usr/lib/librknnrt.so; start it with"),
        ("dev/dri/renderD129", False, "no rknpu driver"),
        ("dev/dri/renderD129", True, "--device /dev/dri/renderD129"),
    ],
)
def test_what_the_system_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    board: Path,
    lacking: str,
    in_container: bool,
    said: str,
) -> None:
    install(monkeypatch, board, init_code=-1)
    (board / lacking).unlink()
    if in_container:
        (board / ".dockerenv").touch()
    assert said in refusal(tmp_path)


def test_missing_rights_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    install(monkeypatch, board, init_code=-1)

    def refuse(path: Path, flags: int) -> int:
        assert path == board / "dev/dri/renderD129" and flags == os.O_RDWR
        raise error

    monkeypatch.setattr(rknn_library.os, "open", refuse)
    error = OSError(errno.EACCES, "Permission denied")  # which makes a PermissionError
    assert "sudo usermod -aG render" in refusal(tmp_path)
    error = OSError(errno.ENODEV, "No such device")
    assert "renderD129 cannot be opened (No such device)" in refusal(tmp_path)


def test_another_machine_and_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    install(monkeypatch, board)
    monkeypatch.setitem(sys.modules, "rknnlite.api", None)
    assert "pip install rknn-toolkit-lite2" in refusal(tmp_path)
    monkeypatch.setattr(rknn_library.platform, "machine", lambda: "x86_64")
    assert "this machine is x86_64" in refusal(tmp_path)


def test_files_that_are_no_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    install(monkeypatch, board)
    profile, backend = profile_of(tmp_path)
    backend.file.write_bytes(b"version https://git-lfs")
    with pytest.raises(EncoderError, match="not an .rknn file"):
        RknnEncoder(profile, backend)
    backend.file.unlink()
    with pytest.raises(EncoderError, match="No such file.*tools.convert_encoder rknn"):
        RknnEncoder(profile, backend)


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (None, "no outputs"),
        ([], "no outputs"),
        ([np.zeros((1, 2, 3), np.float32)] * 2, "2 outputs"),
        ([np.zeros((1, 3, 2), np.float32)], r"\(1, 3, 2\)"),
        ([np.full((1, 2, 3), np.inf, np.float32)], "6 of 6 values that are inf"),
    ],
)
def test_unusable_outputs_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path, gives: Any, said: str
) -> None:
    lite = install(monkeypatch, board)
    encoder = RknnEncoder(*profile_of(tmp_path))
    monkeypatch.setattr(lite, "gives", gives)
    with pytest.raises(EncoderError, match=said):
        encoder.encode(frame(1))


def test_a_run_that_fails_is_noticed_by_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    lite = install(monkeypatch, board)
    encoder = RknnEncoder(*profile_of(tmp_path))
    encoder.encode(frame(1))
    monkeypatch.setattr(lite, "run_code", -2)
    with pytest.raises(EncoderError, match="RKNN_ERR_TIMEOUT; the NPU did not finish in time"):
        encoder.encode(frame(2))
    monkeypatch.setattr(lite, "fails_at", "inference")  # before it comes to run
    with pytest.raises(EncoderError, match="no inference today"):
        encoder.encode(frame(2))
    monkeypatch.setattr(lite, "fails_at", None)
    monkeypatch.setattr(lite, "run_code", 0)
    assert encoder.encode(frame(2))[0, 0] == 96


@pytest.mark.parametrize("frames_before", [0, 1])
def test_a_run_that_fails_is_noticed_by_its_stale_outputs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path, frames_before: int
) -> None:
    lite = install(monkeypatch, board, NoWatchLite)
    encoder = RknnEncoder(*profile_of(tmp_path))
    for value in range(frames_before):
        encoder.encode(frame(50 + value))
    monkeypatch.setattr(lite, "run_code", -7)
    with pytest.raises(EncoderError, match="same embeddings for different pictures"):
        encoder.encode(frame(2))
    monkeypatch.setattr(lite, "run_code", 0)
    assert encoder.encode(frame(2))[0, 0] == 96


def test_a_single_failing_run_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    lite = install(monkeypatch, board, NoWatchLite)
    encoder = RknnEncoder(*profile_of(tmp_path))
    encoder.encode(frame(50))
    infer, calls = lite.inference, []

    def once_stale(self: Lite, inputs: list[Any], data_format: list[str]) -> Any:
        calls.append(inputs)
        type(self).frozen = len(calls) == 1
        return infer(self, inputs, data_format)

    monkeypatch.setattr(lite, "inference", once_stale)
    assert encoder.encode(frame(2))[0, 0] == 96
    assert len(calls) == 3


def test_equal_embeddings_of_similar_pictures_are_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    lite = install(monkeypatch, board)
    encoder = RknnEncoder(*profile_of(tmp_path))
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    first = encoder.encode(picture)
    assert np.array_equal(encoder.encode(picture[::-1]), first)  # of the same sum
    calls = len(lite.log)
    assert np.array_equal(encoder.encode(picture[::-1]), first)
    assert len(lite.log) == calls + 1  # an equal picture raises no doubts


def test_garbage_is_collected_now_and_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, board: Path
) -> None:
    install(monkeypatch, board)
    encoder = RknnEncoder(*profile_of(tmp_path))
    collected: list[int] = []
    monkeypatch.setattr(rknn_encoder, "FRAMES_PER_COLLECTION", 3)
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    for value in range(7):
        encoder.encode(frame(value))
    assert len(collected) == 2


def test_other_threads_errors_are_not_taken_for_ours() -> None:
    with rknn_library.errors_said() as said:
        logger = logging.getLogger("acuityLogger")
        thread = threading.Thread(target=lambda: logger.error("theirs"))
        thread.start()
        thread.join()
        logger.error("ours")
    logger.error("later")
    assert said == ["ours"]
