"""What a user sees without an NPU: Qualcomm's own library for aarch64, under qemu.

Run by `make test-qemu`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from qnn_helpers import DEMO, ROOT, write_small_model

from tools.setup import npu_qnn, qemu

pytestmark = pytest.mark.skipif(
    "EDGE_VLM_ROS_TEST_QEMU" not in os.environ,
    reason="needs qemu-user, an aarch64 Python and its onnxruntime-qnn: run `make test-qemu`",
)
DEVICE, LIBRARY = "dev/fastrpc-cdsp", "usr/lib/libcdsprpc.so"
# onnxruntime reads it, and ends the process when it describes a processor for PCs.
ARM_CPUINFO = """\
processor\t: 0
BogoMIPS\t: 38.40
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x2
CPU part\t: 0xd05
CPU revision\t: 0
"""


@pytest.fixture
def board() -> Iterator[Path]:
    """The root folder of an aarch64 computer, to which a test adds what its board has."""
    source = qemu.ensure().root
    root = source.parent / f"qnn_board_{os.getpid()}"
    subprocess.run(["cp", "-al", str(source), str(root)], check=True)  # links: 76 MB otherwise
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "cpuinfo").write_text(ARM_CPUINFO)
    (root / "dev").mkdir(exist_ok=True)
    try:
        yield root
    finally:
        shutil.rmtree(root)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_small_model(tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def error_on(root: Path, model: Path, *packages: Path) -> str:
    python = qemu.ensure()
    script = Path(__file__).with_name("arm_process.py")
    ended = subprocess.run(
        [*python.command(root), str(script), str(DEMO), str(model)],
        env=python.environment(ROOT, *packages),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "error: " in ended.stdout, ended.stdout + ended.stderr
    return ended.stdout.partition("error: ")[2]


def test_another_board(board: Path, model: Path) -> None:
    error = error_on(board, model, npu_qnn.ensure_arm())
    assert error.startswith("there is no /dev/fastrpc-cdsp: this is not a Qualcomm board")


def test_fastrpc_is_not_installed(board: Path, model: Path) -> None:
    (board / DEVICE).touch()
    error = error_on(board, model, npu_qnn.ensure_arm())
    assert "libcdsprpc.so: cannot open shared object file" in error
    assert "Debian, Ubuntu: libfastrpc1" in error


def test_the_plugin_is_not_installed(board: Path, model: Path) -> None:
    (board / DEVICE).touch()
    compile_library(board / LIBRARY)
    bare = model.parent / "packages"
    bare.mkdir()
    (bare / "onnxruntime").symlink_to(npu_qnn.ensure_arm() / "onnxruntime")
    error = error_on(board, model, bare)
    assert "pip install onnxruntime-qnn==" in error


def test_the_dsp_does_not_answer(board: Path, model: Path) -> None:
    (board / DEVICE).touch()
    compile_library(board / LIBRARY)
    error = error_on(board, model, npu_qnn.ensure_arm())
    assert error.startswith("the NPU does not start with soc_model 35, htp_arch 68")
    assert "/sys/class/remoteproc" in error


def compile_library(library: Path) -> None:
    """A FastRPC library that can be loaded and has nothing in it."""
    command = [qemu.COMPILER, "-shared", "-o", str(library), "-x", "c", "-"]
    subprocess.run(command, input="", text=True, check=True)
