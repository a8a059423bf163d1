"""System packages for Vulkan, and newer headers than the system has, all through apt."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.setup.progress import Failed, note, run
from tools.setup.venv import Venv

_NEWER_SUITE = "trixie"  # Debian 13
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def missing() -> list[str]:
    """Debian's names of what is missing: driver, shader compiler, loader and headers."""
    wanted = {
        "mesa-vulkan-drivers": any(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")),
        "glslc": shutil.which("glslc") is not None,
        "libvulkan-dev": Path("/usr/include/vulkan/vulkan_core.h").exists(),
        "spirv-headers": Path("/usr/include/spirv/unified1/spirv.hpp").exists(),
    }
    return [name for name, is_there in wanted.items() if not is_there]


def ensure(venv: Venv) -> None:
    """Install what is missing, or say how. Raises Failed."""
    names = missing()
    if not names:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *names]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise Failed(
            f"missing system packages. Run this, then try again:\n  sudo {' '.join(command)}"
        )
    note(f"System packages for Vulkan: installing {' '.join(names)}")
    log = venv.logs / "vulkan_packages.log"
    run(["apt-get", "-q", "update"], log, progress="$^")
    run(command, log, progress="$^", env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
    if still := missing():
        raise Failed(f"still missing after the installation: {' '.join(still)}; see {log}")


def unpack_newer(package: str, directory: Path, log: Path) -> None:
    """Unpack a package of Debian 13 from the mirror that apt uses here; nothing is installed.

    Raises Failed.
    """
    note(f"{package} is too old here: unpacking Debian 13's into {directory}")
    with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_apt_") as scratch:
        sources = Path(scratch) / "newer.sources"
        sources.write_text(_newer_suite())
        for name in ("lists/partial", "cache/archives/partial"):
            (Path(scratch) / name).mkdir(parents=True)
        options = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": f"{scratch}/lists",
            "Dir::Cache": f"{scratch}/cache",
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]
        run([*apt, "update"], log, progress="$^")
        run([*apt, "download", package], log, progress="$^", cwd=Path(scratch))
        [archive] = Path(scratch).glob(f"{package}_*.deb")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        run(["dpkg-deb", "-x", archive, directory], log, progress="$^")


def _newer_suite() -> str:
    """A source for apt: the machine's own Debian mirror, with a newer suite."""
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(SIGNED_BY)"]
        + ["Created-By: Packages", "Origin: Debian", "Component: main"],
        capture_output=True,
        text=True,
    )
    mirrors = [line.split()[0] for line in told.stdout.splitlines() if line.strip()]
    main = [mirror for mirror in mirrors if not re.search(r"security", mirror)]
    if not main or not Path(_KEYRING).exists():
        raise Failed(
            "the Vulkan headers of this system are too old for llama.cpp and apt has no Debian "
            "mirror to take newer ones from. Install Vulkan headers 1.3.275 or newer"
        )
    return (
        f"Types: deb\nURIs: {main[0]}\nSuites: {_NEWER_SUITE}\nComponents: main\n"
        f"Signed-By: {_KEYRING}\n"
    )
