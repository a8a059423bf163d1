"""The virtual environment of a working copy, its environment variables and its stamps."""

from __future__ import annotations

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.setup.progress import Failed, step

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = ("jazzy", "kilted")


def declarations() -> dict[str, Any]:
    """The constants of setup.py: requirements, extras, build arguments."""
    return runpy.run_path(str(ROOT / "setup.py"), run_name="declarations")


def digest(*parts: str | bytes) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.hexdigest()


@dataclass(frozen=True)
class Venv:
    """`.venv`: ROS wheels and our interfaces share its prefix."""

    path: Path
    distribution: str
    version: str  # of Python, e.g. "3.11"

    @staticmethod
    def ensure(distribution: str) -> Venv:
        """Make `.venv`, or keep it when it is of this interpreter and distribution."""
        version = "{}.{}".format(*sys.version_info[:2])
        venv = Venv(ROOT / ".venv", distribution, version)
        base = Path(sys.base_prefix).resolve()
        key = digest(distribution, sys.version, str(base), str(venv.path))
        if venv.is_done("venv", key) and venv.python.exists():
            return venv
        step(2, f".venv: CPython {version} of {base}, for ROS 2 {distribution}")
        if venv.path.exists() or venv.path.is_symlink():
            _remove(venv.path)
        result = subprocess.run(
            [sys.executable, "-m", "venv", str(venv.path)], capture_output=True, text=True
        )
        if result.returncode != 0:
            raise Failed(f"python -m venv failed:\n{result.stdout}{result.stderr}")
        venv.distribution_file.parent.mkdir()
        venv.distribution_file.write_text(distribution)
        venv.done("venv", key)
        return venv

    @staticmethod
    def existing_distribution() -> str | None:
        """What `.venv` was made for, if there is one."""
        file = Venv(ROOT / ".venv", "", "").distribution_file
        return file.read_text() if file.is_file() else None

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def distribution_file(self) -> Path:
        return self.path / "setup" / "distribution"

    @property
    def site_packages(self) -> Path:
        return self.path / "lib" / f"python{self.version}" / "site-packages"

    @property
    def logs(self) -> Path:
        return self.path / "setup" / "log"

    def environment(self) -> dict[str, str]:
        """Variables for commands inside the environment, free of any sourced ROS or PYTHONPATH."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "PYTHONHOME", "COLCON_PREFIX_PATH", "MAKEFLAGS")
        }
        libraries = [self.path / "lib", *sorted(self.site_packages.glob("ros_*.libs"))]
        return kept | {
            "VIRTUAL_ENV": str(self.path),
            "PATH": f"{self.path / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "ROS_DISTRO": self.distribution,
            "ROS_VERSION": "2",
            "ROS_PYTHON_VERSION": "3",
            "AMENT_PREFIX_PATH": str(self.path),
            "CMAKE_PREFIX_PATH": str(self.path),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            # The wheels' start-up hook would set LD_LIBRARY_PATH and execute Python again.
            "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1",
        }

    def is_done(self, name: str, key: str) -> bool:
        stamp = self.path / "setup" / f"{name}.stamp"
        return stamp.is_file() and stamp.read_text() == key

    def done(self, name: str, key: str) -> None:
        stamp = self.path / "setup" / f"{name}.stamp"
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)

    def undo(self, name: str) -> None:
        (self.path / "setup" / f"{name}.stamp").unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.is_symlink() or not (path / "pyvenv.cfg").exists():
        raise Failed(f"{path} exists but is not a virtual environment; move it away")
    shutil.rmtree(path)
