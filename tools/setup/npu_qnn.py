"""Qualcomm's plugin for ONNX Runtime, with its NPU emulator, in a virtual environment of its own.

    python -m tools.setup.npu_qnn [--arm]

Converts encoders (tools/convert_encoder) and runs them as on the NPU: `make test-qnn`. With --arm,
the packages that a board would have, for the Python of tools/setup/qemu: `make test-qemu`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.setup.npu_venv import NpuVenv, cache, once
from tools.setup.progress import exit_code, note, run
from tools.setup.venv import digest

# Versions that were tried with one another.
REQUIREMENTS = (
    "ml_dtypes==0.6.0",  # onnxruntime.quantization imports it without requiring it
    "numpy==2.4.6",
    "onnx==1.18.0",
    "onnxruntime==1.30.0",
    "onnxruntime-qnn==2.7.0",
    "pydantic>=2",
    "PyYAML>=6",
)
_ARM_PACKAGES = ("onnxruntime==1.30.0", "onnxruntime-qnn==2.7.0")
_ARM_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_34_aarch64")
VENV = NpuVenv(
    name="qnn",
    package="onnxruntime-qnn",
    size="550 MB, about 1 minute",
    steps=(REQUIREMENTS,),
    pythons=("3.12", "3.11", "3.13"),
    check="import onnxruntime as o, onnxruntime_qnn as q, onnxruntime.quantization, pydantic; "
    "print(q.__version__, 'with onnxruntime', o.__version__)",
)


def ensure() -> Path:
    """The Python of the environment, which is made first where it is not there. Raises Failed."""
    return VENV.ensure()


def ensure_arm() -> Path:
    """A folder of packages for Python 3.11 on aarch64, made where it is missing. Raises Failed."""
    where = cache("qnn")
    packages = where / "arm"
    key = digest(*_ARM_PACKAGES)
    once(where, "arm", key, lambda: _unpack_arm(packages, where / "arm.log"))
    return packages


def _unpack_arm(packages: Path, log: Path) -> None:
    note(f"onnxruntime-qnn for aarch64: unpacking it in {packages} (once, 300 MB, 20 seconds)")
    with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_wheels_") as scratch:
        platforms = [part for name in _ARM_PLATFORMS for part in ("--platform", name)]
        run(
            [sys.executable, "-m", "pip", "download", "--no-input", "--only-binary=:all:"]
            + [*platforms, "--python-version", "3.11", "--implementation", "cp"]
            + ["--no-deps", "--dest", scratch, *_ARM_PACKAGES],
            log,
            progress=r"^\s*(Collecting|Downloading) [^\s,]+",
        )
        shutil.rmtree(packages, ignore_errors=True)
        for wheel in sorted(Path(scratch).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(packages)


def _set_up() -> None:
    if sys.argv[1:] == ["--arm"]:
        ensure_arm()
    else:
        ensure()


if __name__ == "__main__":
    sys.exit(exit_code(_set_up))
