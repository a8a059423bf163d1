"""The generated interfaces and the sources are one package."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import edge_vlm_ros

ROOT = Path(__file__).resolve().parents[2]
INTERFACES = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix()
    for kind in ("action", "msg", "srv")
    for path in (ROOT / kind).glob(f"*.{kind}")
)


@pytest.mark.parametrize("interface", INTERFACES)
def test_interface_is_built_and_has_its_type_support(interface: str) -> None:
    type_support = pytest.importorskip("rclpy.type_support")
    kind, name = interface.split("/")
    module = importlib.import_module(f"edge_vlm_ros.{kind}")
    type_support.check_for_type_support(getattr(module, name))


def test_generated_message_has_the_fields_of_its_file() -> None:
    pytest.importorskip("rclpy")
    from edge_vlm_ros.msg import Metrics

    text = (ROOT / "msg" / "Metrics.msg").read_text()
    fields = re.findall(r"^[\w/]+ +(\w+)", text, re.MULTILINE)
    assert list(Metrics.get_fields_and_field_types()) == fields


def test_sources_are_used_in_place() -> None:
    assert edge_vlm_ros.__file__ is not None
    assert Path(edge_vlm_ros.__file__).resolve() == ROOT / "edge_vlm_ros" / "__init__.py"
