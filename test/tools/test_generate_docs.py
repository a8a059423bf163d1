"""The README's tables are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from edge_vlm_ros.ros.parameter_checks import engine_of, find_spec, value_problem
from edge_vlm_ros.ros.parameters import ENGINE_PARAMETERS, NODE_PARAMETERS, STREAM_PARAMETERS
from tools.generate_docs import Field, fields, filled, interface, main

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_is_up_to_date() -> None:
    assert main(["--check"]) == 0, "run: python tools/generate_docs.py --write"


def test_parts_are_put_between_their_markers_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- begin:parameters -->\nSTALE\n<!-- end:parameters -->\nafter\n")
    assert main(["--check", str(path)]) == 1
    assert main(["--write", str(path)]) == 0
    text = path.read_text()
    assert text.startswith("before\n<!-- begin:parameters -->\n| Parameter |")
    assert text.endswith("<!-- end:parameters -->\nafter\n") and "STALE" not in text
    for spec in NODE_PARAMETERS:
        assert f"| `{spec.name}` |" in text
    for spec in STREAM_PARAMETERS:
        assert f"| `NAME.{spec.name}` |" in text
    for spec in ENGINE_PARAMETERS:
        assert f"| `engine.NAME.{spec.name}` |" in text
    assert main(["--check", str(path)]) == 0


def test_an_unknown_marker_is_an_error() -> None:
    with pytest.raises(KeyError):
        filled("<!-- begin:nothing -->\n<!-- end:nothing -->")


def test_fields_of_an_interface_file() -> None:
    text = "# about\nuint8 A=3  # constant\n\nstring name\nfloat32 x 1.5  # in metres\n"
    assert fields(text) == [
        Field("uint8", "A", "3", "constant"),
        Field("string", "name", "", ""),
        Field("float32", "x", "1.5", "in metres"),
    ]


def test_the_interface_names_every_topic_service_and_field() -> None:
    text = interface()
    for name in (
        "~/tokens",
        "~/streams/NAME/status",
        "/diagnostics",
        "~/placement",
        "~/commit_answer",
        "~/move_ingestion",
        "deadline_s",
        "prefill_engine",
    ):
        assert f"`{name}`" in text


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.name)
def test_parameter_files_set_only_parameters_that_exist(path: Path) -> None:
    parameters = yaml.safe_load(path.read_text())["/**"]["ros__parameters"]
    for name, value in _flat(parameters):
        spec = find_spec(name)
        assert spec is not None, f"{path.name}: {name} is no parameter"
        assert value_problem(name, value) is None
        assert type(value) is type(spec.default), f"{path.name}: {name} has the wrong type"
        assert (engine_of(name) or "cpu") in parameters.get("engines", ["cpu"]), name


def _flat(values: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    flat: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            flat += _flat(value, f"{prefix}{name}.")
        else:
            flat.append((f"{prefix}{name}", value))
    return flat
