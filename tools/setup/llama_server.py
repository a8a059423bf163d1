"""llama-server, built from the llama.cpp that our llama-cpp-python carries, for benchmarks only.

    python -m tools.setup.llama_server

The same sources, compiler and CMake arguments as the wheel's libraries; no web page, no TLS. It is
built once for this machine's processor and kept in the user's cache folder. The llama-cpp-python
that is in use here is left alone, and no `.venv` is needed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tools.setup import llama_wheel
from tools.setup.progress import Failed, exit_code, note, run

_PACKAGE = "llama-cpp-python"
_SERVER_ARGUMENTS = (
    "-DCMAKE_BUILD_TYPE=Release",  # what a wheel is built as
    "-DBUILD_SHARED_LIBS=OFF",  # one file to keep
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",  # the page's files are not in the package
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # and are not to be downloaded
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)


def build_arguments() -> tuple[str, ...]:
    """CMake's: those of the wheel (setup.py), and what makes a server of it."""
    return (*llama_wheel.build_arguments().split(), *_SERVER_ARGUMENTS)


def cache_directory() -> Path:
    """Where the server of this version, these build arguments and this processor is kept."""
    wheels = llama_wheel.cache_directory(" ".join(build_arguments()))
    return wheels.parents[1] / "llama_server" / wheels.name


def ensure() -> Path:
    """The server's executable, which is built first where the cache has none. Raises Failed."""
    cache = cache_directory()
    server = cache / "llama-server"
    if server.is_file():
        return server
    with llama_wheel.locked(cache):
        if server.is_file():  # another process has built it meanwhile
            return server
        note(f"llama-server of {llama_wheel.requirement()}: building, only once")
        note("      5 to 10 minutes on 2 cores")
        with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_server_") as directory:
            built = _build(_sources(Path(directory), cache), cache)
            partial = cache / ".llama-server.partial"
            shutil.move(built, partial)
        return partial.rename(server)


def _sources(directory: Path, logs: Path) -> Path:
    """Download the package's source archive with pip, unpack llama.cpp and return its folder."""
    options = ["--no-deps", "--no-binary", _PACKAGE, "--dest", str(directory)]
    run(
        [sys.executable, "-m", "pip", "download", *options, llama_wheel.requirement()],
        log=logs / "download.log",
        progress=r"^\s*Downloading \S+",
    )
    archive = next(directory.glob("*.tar.gz"), None)
    if archive is None:
        raise Failed(f"pip found no source archive of {llama_wheel.requirement()}")
    run(["tar", "-xzf", archive, "-C", directory], log=logs / "unpack.log", progress="$^")
    tree = next(directory.glob("*/vendor/llama.cpp"), None)
    if tree is None or not (tree / "tools" / "server" / "CMakeLists.txt").is_file():
        raise Failed(f"{archive.name} holds no sources of llama-server in vendor/llama.cpp")
    return tree


def _build(tree: Path, logs: Path) -> Path:
    """Configure and build nothing but the server; returns the executable."""
    build = tree.parent / "build"
    run(
        ["cmake", "-S", tree, "-B", build, *build_arguments()],
        log=logs / "configure.log",
        progress="$^",
    )
    jobs = str(len(os.sched_getaffinity(0)))
    run(
        ["cmake", "--build", build, "--target", "llama-server", "--parallel", jobs],
        log=logs / "build.log",
        progress=r"^\s*(\[\d+/\d+\]|\[\s*\d+%\])",
    )
    return build / "bin" / "llama-server"


def set_up() -> None:
    note(f"llama-server: {ensure()}")


if __name__ == "__main__":
    sys.exit(exit_code(set_up))
