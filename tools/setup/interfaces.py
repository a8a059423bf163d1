"""The ROS interfaces of this package, built with colcon into the environment's own prefix."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tools.setup.progress import run, step
from tools.setup.venv import ROOT, Venv, digest

_CONTENT = ("package.xml", "CMakeLists.txt", "tools/setup/executable.py.in")
_INTERFACES = ("action", "msg", "srv")
_INSTALLED_AS_LINKS = ("config", "dashboards", "launch", "models")


def build_key(venv: Venv) -> str:
    """Digest of all that the build depends on. Python sources are used in place: not part of it."""
    files = [ROOT / name for name in _CONTENT]
    files += [path for name in _INTERFACES for path in _files(ROOT / name)]
    contents = [part for path in files for part in (_name(path), path.read_bytes())]
    links = [_name(path) for name in _INSTALLED_AS_LINKS for path in _files(ROOT / name)]
    return digest(venv.distribution, venv.version, str(ROOT), *contents, *links)


def ensure(venv: Venv) -> bool:
    """Build and install the interfaces. True if anything was done."""
    key = build_key(venv)
    if venv.is_done("interfaces", key):
        return False
    step(5, "ROS interfaces of this package: colcon build (about a minute)")
    venv.undo("interfaces")
    names = digest(*(_name(path) for name in _INTERFACES for path in _files(ROOT / name)))
    if not venv.is_done("interface-names", names):
        _remove_installed(venv)
    run(
        colcon(venv, "build", "--symlink-install", "--event-handlers", "console_direct+"),
        log=venv.logs / "interfaces.log",
        progress=r"\[\s*\d+%\] .*",
        env=venv.environment() | {"CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))},
        cwd=ROOT,
    )
    venv.done("interface-names", names)
    venv.done("interfaces", key)
    return True


def colcon(venv: Venv, verb: str, *options: str) -> list[str | Path]:
    """A colcon command for this package: build files under .venv/colcon, installed into .venv."""
    work = venv.path / "colcon"
    command: list[str | Path] = [venv.path / "bin" / "colcon", "--log-base", work / "log", verb]
    command += ["--paths", ROOT, "--build-base", work / "build", "--install-base", venv.path]
    command += ["--merge-install", *options]
    if verb == "build":
        command += ["--cmake-args", f"-DPython3_EXECUTABLE={venv.python}", "-DBUILD_TESTING=ON"]
    return command


def _remove_installed(venv: Venv) -> None:
    """Forget an earlier build's files: an interface may have gone or changed its name."""
    name = "edge_vlm_ros"
    places = [venv.site_packages, venv.path / "share", venv.path / "include", venv.path / "lib"]
    for place in places:
        shutil.rmtree(place / name, ignore_errors=True)
    for library in (venv.path / "lib").glob(f"lib{name}__*.so"):
        library.unlink()


def _files(directory: Path) -> Iterator[Path]:
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return (path for path in found if "__pycache__" not in path.parts)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
