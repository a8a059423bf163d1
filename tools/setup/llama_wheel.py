"""llama-cpp-python: built once for this machine's processor, then taken from a cache."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.setup.progress import Failed, note, run, step
from tools.setup.venv import Venv, declarations, digest


def processor_features() -> str:
    """The instruction sets of this processor, sorted: llama.cpp is compiled for exactly these."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return " ".join(sorted(set(value.split())))
    return platform.processor()


def requirement() -> str:
    """The pinned requirement of setup.py, e.g. "llama-cpp-python==0.3.36"."""
    [found] = [r for r in declarations()["INSTALL_REQUIRES"] if r.startswith("llama-cpp-python==")]
    return str(found)


def build_arguments() -> str:
    """CMake's, from setup.py."""
    return str(declarations()["LLAMA_CMAKE_ARGS"])


def cache_directory(arguments: str | None = None) -> Path:
    """Where the wheel of this version, these build arguments (setup.py's by default) and this
    processor is kept."""
    version = requirement().partition("==")[2]
    machine = platform.machine()
    key = digest(arguments or build_arguments(), machine, processor_features())[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "edge_vlm_ros" / "wheels" / f"llama_cpp_python-{version}-{machine}-{key}"


def ensure(venv: Venv) -> bool:
    """Install the wheel, building it first where the cache has none. True if anything was done."""
    cache = cache_directory()
    key = digest(str(cache))
    if venv.is_done("llama", key):
        return False
    with locked(cache):
        wheel = cached(cache)
        if wheel is not None:
            step(3, f"{requirement()}: installing the wheel from {cache}")
            if _install(venv, wheel):
                venv.done("llama", key)
                return True
            note("      The cached wheel does not work here (made on another system?).")
            wheel.unlink()
        step(3, f"{requirement()}: building llama.cpp (about 10 minutes on 2 cores, only once)")
        wheel = build(venv, cache, build_arguments(), venv.logs / "llama_build.log")
        if not _install(venv, wheel):
            raise Failed(f"llama_cpp cannot be imported; see {venv.logs / 'llama_import.log'}")
    venv.done("llama", key)
    return True


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Let only one process at a time build into a cache directory."""
    cache.mkdir(parents=True, exist_ok=True)
    directory = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def cached(cache: Path) -> Path | None:
    return next(iter(sorted(cache.glob("*.whl"))), None)


def build(venv: Venv, cache: Path, arguments: str, log: Path) -> Path:
    """Build a wheel with these arguments of CMake and put it into a cache directory."""
    jobs = len(os.sched_getaffinity(0))
    env = venv.environment() | {
        "CMAKE_ARGS": arguments,
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
    }
    # pip's own cache does not tell apart wheels of different CMAKE_ARGS, so it is left out.
    options = ["--no-cache-dir", "--no-deps", "--no-binary", "llama-cpp-python", "--verbose"]
    with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_wheel_") as directory:
        run(
            [venv.python, "-m", "pip", "wheel", *options, "-w", directory, requirement()],
            log=log,
            progress=r"^\s*(\[\d+/\d+\]|\[\s*\d+%\]|Downloading \S+)",
            env=env,
        )
        built = cached(Path(directory))
        if built is None:
            raise Failed(f"pip made no wheel of {requirement()}")
        partial = cache / f".{built.name}.partial"
        shutil.move(built, partial)
        return partial.rename(cache / built.name)


def _install(venv: Venv, wheel: Path) -> bool:
    """Install it without what it requires; False if llama.cpp does not load."""
    options = ["--no-input", "--force-reinstall", "--no-deps"]
    run(
        [venv.python, "-m", "pip", "install", *options, wheel],
        log=venv.logs / "llama_install.log",
        progress="$^",
        env=venv.environment(),
    )
    # Its Python part needs packages that are not installed yet.
    library = venv.site_packages / "llama_cpp" / "lib" / "libllama.so"
    try:
        run(
            [venv.python, "-c", f"import ctypes; ctypes.CDLL({str(library)!r})"],
            log=venv.logs / "llama_import.log",
            progress="$^",
            env=venv.environment(),
        )
    except Failed:
        return False
    return True
