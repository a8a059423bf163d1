"""llama.cpp with its Vulkan backend, for `make test-vulkan`: run on Mesa's software driver.

The libraries go to .venv/vulkan/lib, beside the ordinary ones: llama_cpp takes either, as
LLAMA_CPP_LIB_PATH says.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

from tools.setup import llama_wheel, vulkan_packages
from tools.setup.progress import Failed, exit_code, note
from tools.setup.venv import Venv, digest

_VULKAN_ARGUMENT = "-DGGML_VULKAN=ON"
_NEEDED_HEADERS = (1, 3, 275)


def set_up() -> None:
    """Make .venv/vulkan/lib. Nothing is done when it is there."""
    distribution = Venv.existing_distribution()
    if distribution is None:
        raise Failed("there is no .venv yet: run `make setup` first")
    venv = Venv.ensure(distribution)
    vulkan_packages.ensure(venv)
    arguments = f"{llama_wheel.build_arguments()} {_VULKAN_ARGUMENT}"
    cache = llama_wheel.cache_directory(arguments)
    key = digest(str(cache))
    if venv.is_done("vulkan", key):
        return
    # Not only_one(): the ordinary set-up need not wait for this.
    with llama_wheel.locked(cache):
        wheel = llama_wheel.cached(cache)
        if wheel is None:
            headers = _headers(venv)
            note(f"{llama_wheel.requirement()} with Vulkan: building (once, about 15 minutes)")
            where = f" -DVulkan_INCLUDE_DIR={headers}" if headers else ""
            log = venv.logs / "llama_vulkan_build.log"
            wheel = llama_wheel.build(venv, cache, arguments + where, log)
        _unpack(wheel, venv.path / "vulkan")
    venv.done("vulkan", key)
    note(f"llama.cpp with Vulkan: {venv.path / 'vulkan' / 'lib'}")


def header_version(include: Path) -> tuple[int, ...]:
    """Of the Vulkan headers in an include directory, e.g. (1, 3, 275); () if there are none."""
    try:
        text = (include / "vulkan" / "vulkan_core.h").read_text()
    except OSError:
        return ()
    patch = re.search(r"^#define VK_HEADER_VERSION (\d+)", text, re.M)
    version = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, (\d+), (\d+),", text)
    if patch is None or version is None:
        return ()
    return int(version[1]), int(version[2]), int(patch[1])


def _headers(venv: Venv) -> Path | None:
    """Headers that are new enough for llama.cpp; None if the system's are."""
    if header_version(Path("/usr/include")) >= _NEEDED_HEADERS:
        return None
    directory = venv.path / "vulkan" / "headers"
    vulkan_packages.unpack_newer("libvulkan-dev", directory, venv.logs / "vulkan_headers.log")
    include = directory / "usr" / "include"
    if header_version(include) < _NEEDED_HEADERS:
        needed = ".".join(map(str, _NEEDED_HEADERS))
        raise Failed(f"llama.cpp needs Vulkan headers {needed} or newer, and none were found")
    return include


def _unpack(wheel: Path, directory: Path) -> None:
    libraries = directory / "lib"
    shutil.rmtree(libraries, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        members = [n for n in archive.namelist() if n.startswith("llama_cpp/lib/lib")]
        if not members:
            raise Failed(f"{wheel} holds no libraries; delete it and try again")
        archive.extractall(directory / "unpacked", members)
    os.replace(directory / "unpacked" / "llama_cpp" / "lib", libraries)
    shutil.rmtree(directory / "unpacked")


if __name__ == "__main__":
    sys.exit(exit_code(set_up))
