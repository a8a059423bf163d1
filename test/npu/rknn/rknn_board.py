"""A board without a board: what aarch64 Python under qemu sees, with a stand-in NPU runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.setup import qemu

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
LIBRARY = "usr/lib/librknnrt.so"
DRIVER = "dev/dri/renderD129"
BOARD = "proc/device-tree/compatible"


@contextmanager
def board(*lacking: str, files: Mapping[str, bytes] | None = None) -> Iterator[Path]:
    """The root folder of an RK3588 board, without some of its files and with others."""
    python = qemu.ensure()
    # In the same file system: the copy is of links.
    root = Path(tempfile.mkdtemp(prefix="board_", dir=python.root.parent))
    try:
        shutil.copytree(python.root, root, symlinks=True, copy_function=_link, dirs_exist_ok=True)
        for name, data in ({BOARD: b"radxa,rock-5b\0rockchip,rk3588\0", DRIVER: b""}).items():
            if name not in lacking:
                _write(root / name, data)
        if LIBRARY not in lacking:
            _compile(root / LIBRARY)
        for name, data in (files or {}).items():
            _write(root / name, data)
        yield root
    finally:
        shutil.rmtree(root)


def run_on(root: Path, job: Mapping[str, Any], folder: Path) -> Any:
    """Run ``rknn_arm_process.py`` there; what it reports. Fails with its output."""
    python = qemu.ensure()
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    result = subprocess.run(
        [*python.command(root), str(HERE / "rknn_arm_process.py"), str(file)],
        env=python.environment(ROOT),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def _compile(library: Path) -> None:
    source = HERE / "rknn_runtime_stand_in.c"
    command = [qemu.COMPILER, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(source)], check=True)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _link(source: str, target: str) -> None:
    path = Path(source)
    if path.is_symlink():
        Path(target).symlink_to(path.readlink())
    else:
        Path(target).hardlink_to(path)
