"""launch/edge_vlm.launch.py: its arguments become parameters of the node."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from launch_stand_ins import LAUNCH, declared, load, performed

from edge_vlm_ros.boards import BOARDS
from edge_vlm_ros.ros.parameter_checks import find_spec, value_problem


@pytest.fixture
def launch_file(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load(LAUNCH / "edge_vlm.launch.py", monkeypatch)
    monkeypatch.setattr(module, "detect_board", lambda: "desktop")
    return module


def node_of(module: ModuleType, **given: str) -> dict[str, Any]:
    """The arguments of the node."""
    said, node = performed(module, **given)
    assert said.kind == "LogInfo" and node.kind == "LifecycleNode"
    return node.keywords | {"said": said.keywords["msg"]}


def parameters_of(module: ModuleType, **given: str) -> dict[str, Any]:
    """The node's parameters, those of the arguments over those of the board's file."""
    of_board, overrides = node_of(module, **given)["parameters"]
    return {**of_board, **overrides}


# ------------------------------------------------------------------------- cameras
@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("", {}),
        ("/front/image_raw", {"front": "/front/image_raw"}),
        ("/cam/color/image_raw/compressed", {"cam_color": "/cam/color/image_raw/compressed"}),
        ("/image_raw", {"image_raw": "/image_raw"}),
        ("table:=/a/b, shelf:=/c", {"table": "/a/b", "shelf": "/c"}),
        ("camera/image_raw", {"camera": "camera/image_raw"}),
        ("/1st/image", {"camera_1st": "/1st/image"}),
    ],
)
def test_cameras(launch_file: ModuleType, text: str, streams: dict[str, str]) -> None:
    assert launch_file.parse_cameras(text) == streams


@pytest.mark.parametrize("text", [":=/topic", "name:=", "/a/image_raw,/a/image_rect"])
def test_wrong_cameras_are_explained(launch_file: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="cameras:"):
        performed(launch_file, cameras=text)


@pytest.mark.parametrize("board", BOARDS)
def test_every_camera_has_what_the_boards_file_says(launch_file: ModuleType, board: str) -> None:
    by_itself = parameters_of(launch_file, board=board)
    assert by_itself["streams"] == ["camera"]
    parameters = parameters_of(
        launch_file, board=board, cameras="a:=/x,/b/image_raw", reliability="reliable"
    )
    assert parameters["streams"] == ["a", "b"]
    for stream, topic in (("a", "/x"), ("b", "/b/image_raw")):
        assert parameters[f"{stream}.image_topic"] == topic
        assert parameters[f"{stream}.max_fps"] == by_itself["camera.max_fps"]
        assert parameters[f"{stream}.qos.reliability"] == "reliable"
    assert not any(name.startswith("camera.") for name in parameters), "not used: warned of"


@pytest.mark.parametrize("board", BOARDS)
def test_the_node_knows_all_parameters_that_it_is_given(
    launch_file: ModuleType, board: str
) -> None:
    parameters = parameters_of(
        launch_file,
        board=board,
        cameras="/camera/image_raw",
        reliability="best_effort",
        model="demo",
        autostart="false",
        annotated_images="true",
    )
    for name, value in parameters.items():
        spec = find_spec(name)
        assert spec is not None, name
        assert value_problem(name, value) is None
        kind = float if isinstance(spec.default, float) else type(spec.default)
        assert isinstance(value, kind), name
    assert parameters["autostart"] is False and parameters["annotated_images"] is True


# ------------------------------------------------------------------------- board, model
def test_the_board_is_recognised_unless_it_is_given(
    launch_file: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_file, "detect_board", lambda: "rk3588")
    node = node_of(launch_file)
    assert node["said"] == "edge_vlm: parameters of board rk3588, which was recognised"
    assert node["parameters"][0]["engine.cpu.cpus"] == [4, 5, 6, 7]
    node = node_of(launch_file, board="jetson")
    assert node["said"] == "edge_vlm: parameters of board jetson"
    assert node["parameters"][0]["engines"] == ["gpu", "cpu"]


def test_a_parameter_file_is_used_instead(launch_file: ModuleType) -> None:
    node = node_of(launch_file, params_file="/p.yaml", cameras="table:=/t")
    assert node["parameters"] == ["/p.yaml", {"streams": ["table"], "table.image_topic": "/t"}]
    assert "/p.yaml" in node["said"]


def test_a_model_is_a_name_or_a_path(launch_file: ModuleType, tmp_path: Path) -> None:
    assert parameters_of(launch_file, model="demo")["model_profile"] == "demo"
    assert parameters_of(launch_file, model_profile="demo")["model_profile"] == "demo"
    assert "model_profile" not in node_of(launch_file)["parameters"][1], "the file's"
    path = tmp_path / "mine.yaml"
    path.write_text("")
    assert parameters_of(launch_file, model=str(path))["model_profile"] == str(path)


# ------------------------------------------------------------------------- the node
def test_namespace_log_level_and_respawning(launch_file: ModuleType) -> None:
    node = node_of(launch_file)
    assert (node["package"], node["executable"]) == ("edge_vlm_ros", "edge_vlm")
    assert node["ros_arguments"] == ["--log-level", "edge_vlm:=info"]
    assert (node["respawn"], node["respawn_delay"]) == (True, 2.0)
    node = node_of(
        launch_file,
        namespace="/robot",
        log_level="debug",
        respawn="False",
        respawn_delay="0.5",
    )
    assert node["namespace"] == "/robot"
    assert node["ros_arguments"] == ["--log-level", "robot.edge_vlm:=debug"]
    assert (node["respawn"], node["respawn_delay"]) == (False, 0.5)


def test_former_arguments_are_still_there(launch_file: ModuleType) -> None:
    assert {
        "params_file",
        "model_profile",
        "cameras",
        "namespace",
        "autostart",
        "respawn",
        "respawn_delay",
        "log_level",
    } <= set(declared(launch_file))


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"board": "tpu"}, "board must be desktop or rk3588 or"),
        ({"board": "rk3588", "params_file": "/p.yaml"}, "give one"),
        ({"model": "no_such_model"}, "neither a file nor one of .*demo"),
        ({"model": "demo", "model_profile": "other"}, "the same argument"),
        ({"reliability": "reliable"}, "cameras"),
        ({"reliability": "yes", "cameras": "/t"}, "best_effort or reliable"),
        ({"autostart": "perhaps"}, "autostart must be true or false"),
        ({"annotated_images": "1"}, "annotated_images must be true or false"),
        ({"respawn": "perhaps"}, "respawn must be true or false"),
        ({"respawn_delay": "soon"}, "respawn_delay"),
        ({"respawn_delay": "-1"}, "respawn_delay"),
    ],
)
def test_wrong_arguments_are_explained(
    launch_file: ModuleType, given: dict[str, str], part: str
) -> None:
    with pytest.raises(ValueError, match=part):
        performed(launch_file, **given)
