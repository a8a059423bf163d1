"""What is declared in more than one file agrees."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import edge_vlm_ros

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def setup_py() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "setup.py"), run_name="declarations")


@pytest.fixture(scope="module")
def package_xml() -> ElementTree.Element:
    return ElementTree.parse(ROOT / "package.xml").getroot()


@pytest.fixture(scope="module")
def cmake() -> str:
    return (ROOT / "CMakeLists.txt").read_text()


def test_versions_agree(setup_py: dict[str, Any], package_xml: ElementTree.Element) -> None:
    assert package_xml.findtext("version") == setup_py["VERSION"] == edge_vlm_ros.__version__


def test_every_interface_file_is_listed_in_cmake(cmake: str) -> None:
    listed = re.findall(r'"((?:action|msg|srv)/\w+\.(?:action|msg|srv))"', cmake)
    on_disk = [
        path.relative_to(ROOT).as_posix()
        for kind in ("action", "msg", "srv")
        for path in (ROOT / kind).glob(f"*.{kind}")
    ]
    assert sorted(listed) == sorted(on_disk)
    assert len(listed) == len(set(listed))


def test_interface_dependencies_are_declared(cmake: str, package_xml: ElementTree.Element) -> None:
    used = set()
    for kind in ("action", "msg", "srv"):
        for path in (ROOT / kind).glob(f"*.{kind}"):
            used |= set(re.findall(r"^(\w+)/\w+", path.read_text(), re.MULTILINE))
    [dependencies] = re.findall(r"DEPENDENCIES ([\w\s]+)\)", cmake)
    assert used <= set(dependencies.split())
    declared = {element.text for element in package_xml.findall("depend")}
    assert set(dependencies.split()) <= declared


def test_every_ros_package_imported_is_declared(package_xml: ElementTree.Element) -> None:
    imported = set()
    for path in (ROOT / "edge_vlm_ros").rglob("*.py"):
        imported |= set(
            re.findall(r"^\s*(?:from|import) (rclpy|launch\w*|\w+_msgs)\b", path.read_text(), re.M)
        )
    declared = {
        element.text for tag in ("depend", "exec_depend") for element in package_xml.findall(tag)
    }
    assert imported <= declared


def test_executables_have_a_module(cmake: str) -> None:
    executables = dict(re.findall(r"^install_executable\((\w+) ([\w.]+)\)", cmake, re.MULTILINE))
    assert set(executables) == {
        "edge_vlm",
        "ask",
        "calibrate",
        "demo",
        "demo_camera",
        "devices",
        "model",
        "simulate",
    }
    for module in executables.values():
        source = ROOT / (module.replace(".", "/") + ".py")
        assert re.search(r"^def main\(", source.read_text(), re.MULTILINE), module


def test_both_distributions_have_the_ros_packages_of_package_xml(
    setup_py: dict[str, Any], package_xml: ElementTree.Element
) -> None:
    needed = {"rclpy", "sensor_msgs", "std_msgs", "diagnostic_msgs", "lifecycle_msgs"}
    declared = {element.text for element in package_xml}
    assert needed <= declared
    for distribution in ("jazzy", "kilted"):
        wheels = set(setup_py["EXTRAS_REQUIRE"][f"ros-{distribution}"])
        for name in needed:
            assert f"ros-{distribution}-{name.replace('_', '-')}" in wheels


def test_llama_is_pinned_exactly(setup_py: dict[str, Any]) -> None:
    assert "llama-cpp-python==0.3.36" in setup_py["INSTALL_REQUIRES"]
    assert "-DGGML_RPC=ON" in setup_py["LLAMA_CMAKE_ARGS"]
    assert "-DGGML_OPENMP=OFF" in setup_py["LLAMA_CMAKE_ARGS"]
