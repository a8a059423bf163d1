"""Virtual environments for the vendors' converters, each in the user's cache."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.setup import llama_wheel
from tools.setup.progress import Failed, note, run
from tools.setup.venv import digest

_LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class NpuVenv:
    """``steps`` are the arguments of one ``pip install`` each. ``pythons`` are the versions that
    there are wheels for, best first. ``check`` is a program that says which version works."""

    name: str
    package: str
    size: str
    steps: tuple[tuple[str, ...], ...]
    pythons: tuple[str, ...]
    check: str

    @property
    def directory(self) -> Path:
        return cache(self.name)

    @property
    def python(self) -> Path:
        return self.directory / "venv" / "bin" / "python"

    def ensure(self) -> Path:
        """The Python of the environment, which is made first where it is not there. Raises
        Failed."""
        key = digest(*(word for step in self.steps for word in step))
        once(self.directory, "done", key, self._make, lambda: self.python.exists())
        return self.python

    def _make(self) -> None:
        where = self.directory
        interpreter = self._interpreter()
        note(f"{self.package}: setting it up in {where} (once, {self.size})")
        shutil.rmtree(where / "venv", ignore_errors=True)
        run([interpreter, "-m", "venv", where / "venv"], where / "venv.log", progress="$^")
        for number, step in enumerate(self.steps):
            run(
                [self.python, "-m", "pip", "install", "--no-input", "--only-binary=:all:", *step],
                where / f"packages{number}.log",
                progress=r"^\s*(Collecting|Downloading|Installing) [^\s,]+",
                env=environment(),
            )
        command: Sequence[str | Path] = (self.python, "-c", self.check)
        told = subprocess.run(command, capture_output=True, text=True, env=environment())
        if told.returncode != 0:
            raise Failed(f"{self.package} was installed but does not start:\n{told.stderr}")
        note(f"{self.package} {told.stdout.strip()}: {where / 'venv'}")

    def _interpreter(self) -> str:
        """A Python that there are wheels for: this one if it can be. Raises Failed."""
        if platform.machine() not in ("x86_64", "aarch64") or sys.platform != "linux":
            raise Failed(
                f"{self.package} exists for Linux on x86-64 and aarch64 only, and this is "
                f"{sys.platform} on {platform.machine()}; convert on another computer"
            )
        if "{}.{}".format(*sys.version_info[:2]) in self.pythons:
            return sys.executable
        found = (shutil.which(f"python{version}") for version in self.pythons)
        for interpreter in filter(None, found):
            return interpreter
        raise Failed(
            f"{self.package} needs Python {', '.join(self.pythons)}, and this is "
            f"{platform.python_version()}; install one of those, for example with "
            "`apt-get install python3.12-venv`"
        )


def cache(name: str) -> Path:
    """The folder of one set-up, in the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "edge_vlm_ros" / "npu" / name


def once(
    where: Path,
    name: str,
    key: str,
    make: Callable[[], None],
    is_there: Callable[[], bool] = lambda: True,
) -> None:
    """Call ``make`` unless it was done with the same ``key`` before. Raises what it raises."""
    stamp = where / f"{name}.stamp"
    with llama_wheel.locked(where):
        if not (stamp.is_file() and stamp.read_text() == key and is_there()):
            make()
            stamp.write_text(key)


def environment() -> dict[str, str]:
    """Variables for programs in such an environment: no packages of a sourced ROS or another."""
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    return kept | {"ORT_DISABLE_TELEMETRY": "1"}
