"""Rockchip's converter and simulator (rknn-toolkit2), in a virtual environment of its own.

    python -m tools.setup.npu_rknn

It needs versions of NumPy, protobuf and setuptools that nothing else here wants. PyTorch is left
out (750 MB): converting ONNX files does not use it, see tools/convert_encoder/rknn_process.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.setup.npu_venv import NpuVenv
from tools.setup.progress import exit_code

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
VENV = NpuVenv(
    name="rknn",
    package=TOOLKIT,
    size="650 MB, about 2 minutes",
    steps=(_REQUIREMENTS, ("--no-deps", TOOLKIT)),
    pythons=("3.12", "3.11", "3.10"),
    check="import importlib.metadata as m, pkg_resources, cv2, onnx, onnxruntime, scipy; "
    "print(m.version('rknn-toolkit2'))",
)


def ensure() -> Path:
    """The Python of the environment, which is made first where it is not there. Raises Failed."""
    return VENV.ensure()


def _set_up() -> None:
    ensure()


if __name__ == "__main__":
    sys.exit(exit_code(_set_up))
