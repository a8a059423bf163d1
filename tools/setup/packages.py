"""All other Python packages, from the lists of setup.py."""

from __future__ import annotations

import re
import subprocess

from tools.setup.progress import Failed, run, step
from tools.setup.venv import ROOT, Venv, declarations, digest

# Where the ROS wheels' CMake files look for Python and NumPy: on the machine that made them.
_BAKED_NUMPY = re.compile(
    r"/opt/python/[^/;\"]+/lib/python3\.\d+/site-packages/numpy/_core/include"
)
_BAKED_PYTHON = re.compile(r"/opt/python/[^/;\"]+/include/python3\.\d+")


def requirements(distribution: str) -> list[str]:
    declared = declarations()
    extras = declared["EXTRAS_REQUIRE"]
    # rosidl's generators and colcon import setuptools without requiring it everywhere.
    return [
        *declared["INSTALL_REQUIRES"],
        *extras[f"ros-{distribution}"],
        *extras["dev"],
        "setuptools<80",
    ]


def ensure(venv: Venv) -> bool:
    """Install what is missing. True if anything was done."""
    wanted = requirements(venv.distribution)
    key = digest(*wanted, str(ROOT))
    if venv.is_done("packages", key):
        return False
    step(4, f"Python packages: ROS 2 {venv.distribution}, runtime, tools (1 to 3 minutes)")
    listed = venv.path / "setup" / "requirements.txt"
    listed.write_text("\n".join(wanted) + "\n")
    run(
        [venv.python, "-m", "pip", "install", "--no-input", "-r", listed],
        log=venv.logs / "packages.log",
        progress=r"^\s*(Collecting|Downloading|Installing) [^\s,]+",
        env=venv.environment(),
    )
    _point_cmake_files_here(venv)
    # The package itself is imported from the source tree.
    (venv.site_packages / "edge_vlm_ros_source.pth").write_text(
        # In front: the installed package lacks modules that were added since it was built.
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    )
    venv.done("packages", key)
    return True


def _point_cmake_files_here(venv: Venv) -> None:
    code = "import numpy, sysconfig as s; print(s.get_path('include')); print(numpy.get_include())"
    result = subprocess.run(
        [str(venv.python), "-c", code], capture_output=True, text=True, env=venv.environment()
    )
    if result.returncode != 0:
        raise Failed(f"cannot import numpy:\n{result.stderr}")
    python_include, numpy_include = result.stdout.splitlines()
    for path in (venv.path / "share").rglob("*.cmake"):
        text = path.read_text(errors="surrogateescape")
        here = _BAKED_NUMPY.sub(numpy_include, text)
        here = _BAKED_PYTHON.sub(python_include, here)
        if here != text:
            path.write_text(here, errors="surrogateescape")
