"""Dashboards draw what exists: their topics are the node's, their fields those of the messages."""

from __future__ import annotations

import ast
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy")

from status_samples import PLACEMENT, PLANNING, READING, VISION  # noqa: E402

from edge_vlm_ros.ros.diagnostics import (  # noqa: E402
    NodeState,
    caches_report,
    encoder_report,
    engine_report,
    node_report,
    placement_report,
    planning_report,
    to_message,
)
from edge_vlm_ros.ros.publishers import TOPICS  # noqa: E402

DASHBOARDS = Path(__file__).resolve().parents[1] / "dashboards"
NODE = "/edge_vlm"
NUMBERS = re.compile(r"(double|float|u?int(8|16|32|64)|boolean)\Z")


def message_of(topic: str) -> type:
    """The type of a topic of the node, with the stream and the engine that config/*.yaml has."""
    for known in TOPICS:
        name = known.name.replace("~", NODE)
        owner = "camera" if "/streams/" in name else "cpu"
        if name.replace("NAME", owner) == topic:
            return known.message
    raise AssertionError(f"the node publishes no {topic}")


def check_number(topic: str, field: str) -> None:
    fields = message_of(topic).get_fields_and_field_types()
    assert field in fields, f"{topic} has no {field}"
    assert NUMBERS.match(fields[field]), f"{topic}: {field} is {fields[field]}, nothing to draw"


# ------------------------------------------------------------------------- PlotJuggler
def test_plotjuggler() -> None:
    root = ElementTree.parse(DASHBOARDS / "plotjuggler.xml").getroot()
    curves = [curve.attrib["name"] for curve in root.iter("curve")]
    assert len(curves) > 20
    topics = set()
    for curve in curves:
        topic, _, field = curve.rpartition("/")
        check_number(topic, field)
        topics.add(topic)
    selected = root.find(".//selected_topics")
    assert selected is not None
    assert set(selected.attrib["value"].split(";")) == topics, "all are subscribed to"
    for splitter in root.iter("DockSplitter"):
        assert len(splitter) == int(splitter.attrib["count"])
        assert len(splitter.attrib["sizes"].split(";")) == len(splitter)
    plugin = root.find(".//plugin")
    streamer = root.find("previouslyLoaded_Streamer")
    assert plugin is not None and streamer is not None
    assert plugin.attrib["ID"] == streamer.attrib["name"] == "ROS2 Topic Subscriber"


# ------------------------------------------------------------------------- Foxglove
def test_foxglove() -> None:
    layout = json.loads((DASHBOARDS / "foxglove.json").read_text())
    panels = layout["configById"]
    assert sorted(_leaves(layout["layout"])) == sorted(panels), "every panel is shown once"
    drawn = 0
    for name, panel in panels.items():
        kind = name.partition("!")[0]
        if kind == "Plot":
            for path in panel["paths"]:
                check_number(*path["value"].split("."))
                drawn += 1
        elif kind == "Image":
            assert message_of(panel["imageMode"]["imageTopic"]).__name__ == "Image"
        elif kind == "RawMessages":
            topic, _, field = panel["topicPath"].partition(".")
            fields = message_of(topic).get_fields_and_field_types()
            assert not field or field in fields
        else:
            assert kind == "DiagnosticSummary", f"a panel that is not checked: {name}"
            assert message_of(panel["topicToRender"]).__name__ == "DiagnosticArray"
    assert drawn > 20


def _leaves(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        assert node["direction"] in ("row", "column")
        yield from _leaves(node["first"])
        yield from _leaves(node["second"])


# ------------------------------------------------------------------------- rqt
def test_rqt() -> None:
    perspective = json.loads((DASHBOARDS / "edge_vlm.perspective").read_text())
    manager = perspective["groups"]["pluginmanager"]
    running = _value(manager["keys"]["running-plugins"])
    assert set(running) == {
        "rqt_plot/Plot",
        "rqt_robot_monitor/RobotMonitor",
        "rqt_image_view/ImageView",
    }
    groups = {
        f"plugin__{plugin.replace('/', '__')}__{serial}"
        for plugin, serials in running.items()
        for serial in serials
    }
    assert set(manager["groups"]) == groups, "settings are of plugins that run"
    drawn = set()
    for name, group in manager["groups"].items():
        settings = {key: _value(value) for key, value in group["groups"]["plugin"]["keys"].items()}
        if "rqt_plot" in name:
            assert len(settings["topics"]) > 1, "rqt_plot reads a single one as text"
            for path in settings["topics"]:
                topic, _, field = path.rpartition("/")
                check_number(topic, field)
                drawn.add(field)
        elif "image_view" in name:
            assert message_of(settings["topic"]).__name__ == "Image"
    assert {
        "ttft_ms",
        "decode_tok_s",
        "waiting_answers",
        "pending_frames",
        "memory_kv_bytes",
    } <= drawn


def _value(setting: dict[str, str]) -> Any:
    assert setting["type"] == "repr"
    return ast.literal_eval(setting["repr"])


def test_the_aggregator_finds_every_line_of_diagnostics() -> None:
    document = yaml.safe_load((DASHBOARDS / "diagnostics_aggregator.yaml").read_text())
    analyzers = document["/**"]["ros__parameters"]
    prefixes = [
        prefix
        for analyzer in analyzers.values()
        if isinstance(analyzer, dict)
        for prefix in analyzer["find_and_remove_prefix"]
    ]
    state = NodeState("active", "demo", loading="", configure_error="", callback_errors=0)
    reports = [
        node_report(state, None),
        engine_report(READING, 0.0),
        placement_report(PLACEMENT),
        planning_report(PLANNING),
        encoder_report(VISION),
        caches_report(VISION),
    ]
    names = [to_message(report, "edge_vlm", "here").name for report in reports]
    for name in [*names, "edge_vlm: stream camera"]:
        assert sum(name.startswith(prefix) for prefix in prefixes) == 1, name
