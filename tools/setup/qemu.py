"""Python and Rockchip's RKNNLite for aarch64, run on any computer by qemu-user.

    python -m tools.setup.qemu

A root folder with Debian's Python 3.11 for arm64 and the wheels beside it, all unpacked and nothing
installed: no foreign architecture is added to the system, and no binfmt, chroot or container is
used. Files that a board would have (/dev/dri/renderD129, librknnrt.so) are found in the root folder
first, so tests put theirs there.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.setup import llama_wheel
from tools.setup.progress import Failed, exit_code, note, run
from tools.setup.venv import digest

EMULATOR = "qemu-aarch64-static"
COMPILER = "aarch64-linux-gnu-gcc"
_TOOLS = {
    EMULATOR: ["qemu-user-static"],
    COMPILER: ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
}
_SUITE = "bookworm"  # Debian 12: its Python 3.11 is one that RKNNLite has wheels for
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_DEBS = ("python3.11", "libstdc++6", "libgcc-s1", "libgomp1")
_WHEELS = (
    "rknn-toolkit-lite2==2.5.0",
    "numpy==1.26.4",
    "psutil>=6",
    "pydantic>=2",
    "PyYAML>=6",
    "ruamel.yaml>=0.18",
    "setuptools<81",
)
_PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64")


@dataclass(frozen=True)
class ArmPython:
    """Python 3.11 for aarch64: ``root`` is what it sees as /, ``site`` holds its packages."""

    root: Path
    site: Path

    def command(self, root: Path | None = None) -> list[str]:
        """What starts it; ``root`` may be a copy of the root folder with more files."""
        root = root or self.root
        return [EMULATOR, "-L", str(root), str(root / "usr" / "bin" / "python3.11")]

    def environment(self, *paths: Path) -> dict[str, str]:
        """Variables for it, with ``paths`` to import from before its packages."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": os.pathsep.join(map(str, (*paths, self.site))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "LC_ALL": "C.UTF-8",
        }


def directory() -> Path:
    """Where all of it is kept, in the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "edge_vlm_ros" / "npu" / "qemu"


def ensure() -> ArmPython:
    """Make what is missing. Raises Failed."""
    where = directory()
    python = ArmPython(where / "root", where / "site")
    _ensure_tools(where)
    stamp, key = where / "done.stamp", digest(*_DEBS, *_WHEELS)
    if stamp.is_file() and stamp.read_text() == key:
        return python
    with llama_wheel.locked(where):
        if not (stamp.is_file() and stamp.read_text() == key):
            note(f"Python for aarch64 under qemu: unpacking it in {where} (once, 200 MB, 1 minute)")
            _unpack_debs(python.root, where)
            _unpack_wheels(python.site, where)
            _check(python, where)
            stamp.write_text(key)
    return python


def missing() -> list[str]:
    """Debian's names of the packages that are needed and not installed."""
    return [name for tool, names in _TOOLS.items() if shutil.which(tool) is None for name in names]


def _ensure_tools(where: Path) -> None:
    names = missing()
    if not names:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *names]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Failed(
            f"missing system packages. Run this, then try again:\n  sudo {' '.join(command)}"
        )
    note(f"System packages for aarch64: installing {' '.join(names)}")
    log = where / "tools.log"
    run(["apt-get", "-q", "update"], log, progress="$^")
    run(command, log, progress="$^", env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
    if still := missing():
        raise Failed(f"still missing after the installation: {' '.join(still)}; see {log}")


def _unpack_debs(root: Path, where: Path) -> None:
    """Debian packages for arm64, fetched with an apt state of their own."""
    log = where / "debs.log"
    with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_apt_") as scratch:
        sources = Path(scratch) / "arm64.sources"
        sources.write_text(_sources())
        for name in ("lists/partial", "cache/archives/partial"):
            (Path(scratch) / name).mkdir(parents=True)
        options = {
            "APT::Architecture": "arm64",
            "APT::Architectures::": "arm64",
            "APT::Sandbox::User": "root",
            "Dir::Cache": f"{scratch}/cache",
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": f"{scratch}/lists",
            "Dir::State::status": "/dev/null",
        }
        apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
        run([*apt, "update"], log, progress="$^")
        fetch = ["install", "-y", "--download-only", "--no-install-recommends"]
        run([*apt, *fetch, *_DEBS], log, progress=r"^Get:\d+")
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for archive in sorted(Path(scratch, "cache", "archives").glob("*.deb")):
            run(["dpkg-deb", "-x", archive, root], log, progress="$^")


def _sources() -> str:
    """A source for apt: the Debian mirror that the machine uses already."""
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
        + ["Created-By: Packages", "Origin: Debian", "Component: main"],
        capture_output=True,
        text=True,
    )
    mirrors = [line for line in told.stdout.splitlines() if not re.search("security", line)]
    if not mirrors or not Path(_KEYRING).exists():
        raise Failed(
            "apt has no Debian mirror here to take Python for arm64 from; run this on Debian, or "
            "in a container of it"
        )
    return (
        f"Types: deb\nURIs: {mirrors[0]}\nSuites: {_SUITE}\nComponents: main\n"
        f"Signed-By: {_KEYRING}\n"
    )


def _unpack_wheels(site: Path, where: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_wheels_") as scratch:
        platforms = [part for name in _PLATFORMS for part in ("--platform", name)]
        run(
            [sys.executable, "-m", "pip", "download", "--no-input", "--only-binary=:all:"]
            + [*platforms, "--python-version", "3.11", "--implementation", "cp"]
            + ["--dest", scratch, *_WHEELS],
            log=where / "wheels.log",
            progress=r"^\s*(Collecting|Downloading) [^\s,]+",
        )
        shutil.rmtree(site, ignore_errors=True)
        for wheel in sorted(Path(scratch).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)


def _check(python: ArmPython, where: Path) -> None:
    code = "import platform, numpy, pydantic, yaml; assert platform.machine() == 'aarch64'"
    result = subprocess.run(
        [*python.command(), "-c", code], capture_output=True, text=True, env=python.environment()
    )
    if result.returncode != 0:
        raise Failed(f"Python for aarch64 in {where} does not start:\n{result.stderr}")
    note(f"Python 3.11 for aarch64, on {platform.machine()}: {python.root}")


def _set_up() -> None:
    ensure()


if __name__ == "__main__":
    sys.exit(exit_code(_set_up))
