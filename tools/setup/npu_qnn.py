"""Qualcomm's plugin for ONNX Runtime, with its NPU emulator, in a virtual environment of its own.

    python -m tools.setup.npu_qnn [--arm]

Converts encoders (tools/convert_encoder) and runs them as on the NPU: `make test-qnn`. With --arm,
the packages that a board would have, for the Python of tools/setup/qemu: `make test-qemu`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.setup import llama_wheel
from tools.setup.progress import Failed, exit_code, note, run
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
_PYTHONS = ("3.12", "3.11", "3.13")  # of which there are wheels
_ARM_PACKAGES = ("onnxruntime==1.30.0", "onnxruntime-qnn==2.7.0")
_ARM_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_34_aarch64")
_CHECK = (
    "import onnxruntime as o, onnxruntime_qnn as q, onnxruntime.quantization, pydantic, yaml; "
    "print(q.__version__, 'with onnxruntime', o.__version__)"
)


def directory() -> Path:
    """The environment's folder, in the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "edge_vlm_ros" / "npu" / "qnn"


def ensure() -> Path:
    """The Python of the environment, which is made first where it is not there. Raises Failed."""
    where = directory()
    python = where / "venv" / "bin" / "python"
    stamp, key = where / "done.stamp", digest(*REQUIREMENTS)
    with llama_wheel.locked(where):
        if not (stamp.is_file() and stamp.read_text() == key and python.exists()):
            _make(where, python)
            stamp.write_text(key)
    return python


def ensure_arm() -> Path:
    """A folder of packages for Python 3.11 on aarch64, made where it is missing. Raises Failed."""
    where = directory()
    packages = where / "arm"
    stamp, key = where / "arm.stamp", digest(*_ARM_PACKAGES)
    with llama_wheel.locked(where):
        if not (stamp.is_file() and stamp.read_text() == key):
            _unpack_arm(packages, where / "arm.log")
            stamp.write_text(key)
    return packages


def environment() -> dict[str, str]:
    """Variables for programs in it: no packages of a sourced ROS or another environment."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {"ORT_DISABLE_TELEMETRY": "1"}


def _make(where: Path, python: Path) -> None:
    note(f"onnxruntime-qnn: setting it up in {where} (once, 550 MB, about 1 minute)")
    shutil.rmtree(where / "venv", ignore_errors=True)
    run([_interpreter(), "-m", "venv", where / "venv"], where / "venv.log", progress="$^")
    run(
        [python, "-m", "pip", "install", "--no-input", "--only-binary=:all:", *REQUIREMENTS],
        where / "packages.log",
        progress=r"^\s*(Collecting|Downloading|Installing) [^\s,]+",
        env=environment(),
    )
    told = subprocess.run([python, "-c", _CHECK], capture_output=True, text=True, env=environment())
    if told.returncode != 0:
        raise Failed(f"onnxruntime-qnn was installed but does not start:\n{told.stderr}")
    note(f"onnxruntime-qnn {told.stdout.strip()}: {where / 'venv'}")


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


def _interpreter() -> str:
    """A Python that there are wheels for: this one if it can be. Raises Failed."""
    if platform.machine() not in ("x86_64", "aarch64") or sys.platform != "linux":
        raise Failed(
            "onnxruntime-qnn exists for Linux on x86-64 and aarch64 only, and this is "
            f"{sys.platform} on {platform.machine()}; convert on another computer"
        )
    if "{}.{}".format(*sys.version_info[:2]) in _PYTHONS:
        return sys.executable
    found = (shutil.which(f"python{version}") for version in _PYTHONS)
    for interpreter in filter(None, found):
        return interpreter
    raise Failed(
        f"onnxruntime-qnn needs Python {', '.join(_PYTHONS)}, and this is "
        f"{platform.python_version()}; install one of those, for example with "
        "`apt-get install python3.12-venv`"
    )


def _set_up() -> None:
    if sys.argv[1:] == ["--arm"]:
        ensure_arm()
    else:
        ensure()


if __name__ == "__main__":
    sys.exit(exit_code(_set_up))
