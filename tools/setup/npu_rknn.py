"""Rockchip's converter and simulator (rknn-toolkit2), in a virtual environment of its own.

    python -m tools.setup.npu_rknn

It needs versions of NumPy, protobuf and setuptools that nothing else here wants. PyTorch is left
out (750 MB): converting ONNX files does not use it, see tools/convert_encoder/rknn_process.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tools.setup import llama_wheel
from tools.setup.progress import Failed, exit_code, note, run
from tools.setup.venv import digest

TOOLKIT = "rknn-toolkit2==2.5.0"
# What it imports when it converts ONNX, at versions that it was tried with. It asks for
# opencv-python and torch, too, so pip is not to resolve its requirements.
_REQUIREMENTS = (
    "fast-histogram==0.14",
    "numpy==1.26.4",
    "onnx==1.18.0",
    "onnxruntime==1.26.0",
    "opencv-python-headless==4.11.0.86",
    "protobuf==4.25.4",
    "psutil>=6",
    "ruamel.yaml>=0.18",
    "scipy>=1.11",
    "setuptools<81",  # it imports pkg_resources
    "tqdm>=4.60",
)
_PYTHONS = ("3.12", "3.11", "3.10")  # of which there are wheels
_CHECK = (
    "import importlib.metadata as m, pkg_resources, cv2, onnx, onnxruntime, scipy; "
    "print(m.version('rknn-toolkit2'))"
)


def directory() -> Path:
    """The environment's folder, in the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "edge_vlm_ros" / "npu" / "rknn"


def ensure() -> Path:
    """The Python of the environment, which is made first where it is not there. Raises Failed."""
    where = directory()
    python = where / "venv" / "bin" / "python"
    stamp, key = where / "done.stamp", digest(TOOLKIT, *_REQUIREMENTS)
    if _is_done(stamp, key) and python.exists():
        return python
    with llama_wheel.locked(where):
        if not (_is_done(stamp, key) and python.exists()):
            _make(where, python)
            stamp.write_text(key)
    return python


def _is_done(stamp: Path, key: str) -> bool:
    return stamp.is_file() and stamp.read_text() == key


def _make(where: Path, python: Path) -> None:
    interpreter = _interpreter()
    note(f"{TOOLKIT}: setting it up in {where} (once, 650 MB, about 2 minutes)")
    shutil.rmtree(where / "venv", ignore_errors=True)
    run([interpreter, "-m", "venv", where / "venv"], where / "venv.log", progress="$^")
    pip: list[str | Path] = [python, "-m", "pip", "install", "--no-input", "--only-binary=:all:"]
    downloads = r"^\s*(Collecting|Downloading|Installing) [^\s,]+"
    # PYTHONPATH and the like of a sourced ROS must not leak into it.
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    run([*pip, *_REQUIREMENTS], where / "packages.log", downloads, env=clean)
    run([*pip, "--no-deps", TOOLKIT], where / "toolkit.log", downloads, env=clean)
    told = subprocess.run([python, "-c", _CHECK], capture_output=True, text=True, env=clean)
    if told.returncode != 0:
        raise Failed(f"{TOOLKIT} was installed but does not start:\n{told.stderr}")
    note(f"rknn-toolkit2 {told.stdout.strip()}: {where / 'venv'}")


def _interpreter() -> str:
    """A Python that the toolkit has wheels for: this one if it can be. Raises Failed."""
    if platform.machine() not in ("x86_64", "aarch64") or sys.platform != "linux":
        raise Failed(
            f"{TOOLKIT} exists for Linux on x86-64 and aarch64 only, and this is "
            f"{sys.platform} on {platform.machine()}; convert on another computer"
        )
    if "{}.{}".format(*sys.version_info[:2]) in _PYTHONS:
        return sys.executable
    found = (shutil.which(f"python{version}") for version in _PYTHONS)
    for interpreter in filter(None, found):
        return interpreter
    raise Failed(
        f"{TOOLKIT} needs Python {', '.join(_PYTHONS)}, and this is {platform.python_version()}; "
        "install one of those, for example with `apt-get install python3.12-venv`"
    )


def _set_up() -> None:
    ensure()


if __name__ == "__main__":
    sys.exit(exit_code(_set_up))
