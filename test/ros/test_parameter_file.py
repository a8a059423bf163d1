"""Parameter files read without a node mean what they mean to the node."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import ROOT

from edge_vlm_ros.ros.parameter_file import read_config
from edge_vlm_ros.runtime import ConfigError

SHIPPED = sorted((ROOT / "config").glob("*.yaml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "parameters.yaml"
    path.write_text(text)
    return path


def test_without_a_file_it_is_the_defaults() -> None:
    config = read_config(None)
    assert [engine.name for engine in config.engines] == ["cpu"]
    assert config.profile.name == "demo" and config.planning.policy == "sdep"


def test_values_are_found_in_nested_and_dotted_names(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
/**:
  ros__parameters:
    streams: [table]
    table: {max_fps: 5, ingest_engine: second}
    engines: [cpu, second]
    engine.second.device: rpc
    engine: {cpu: {n_threads: 1, cpus: []}}
    use_sim_time: true
edge_vlm:
  ros__parameters:
    engine: {second: {chunk_tokens: 32}}
other:
  ros__parameters:
    engines: [nowhere]
""",
    )
    config = read_config(path)
    assert repr(config.streams[0].max_fps) == "5.0", "everybody who writes 5 means 5.0"
    assert config.streams[0].ingest_engine == "second"
    cpu, second = config.engines
    assert (cpu.n_threads, cpu.cpus, cpu.chunk_tokens) == (1, (), 64)
    assert (second.device, second.chunk_tokens) == ("rpc", 32)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_shipped_files_can_be_read(path: Path) -> None:
    assert read_config(path).engines


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("engines: [cpu, cpu]", "engines must be different names"),
        ('engine.cpu.device: "cuda:x"', "engine.cpu.device"),
        ("engine.cpu.n_threads: many", "engine.cpu.n_threads must be of type int"),
        ("engine.cpu.exact: 1", "engine.cpu.exact must be of type bool"),
        ("engine.cpu.ingest_share: 2", "engine.cpu.ingest_share must be from 0.01 to 0.99"),
        ("planning.calibration: sometimes", "planning.calibration must be one of"),
        (
            "planing.calibration: always",
            "unknown parameter planing.calibration; did you mean planning.calibration? "
            "README.md lists all parameters",
        ),
        ("{streams: [table], table.max_pfs: 5}", "table.max_pfs; did you mean table.max_fps?"),
        ("engine.cpu.n_thread: 2", "engine.cpu.n_thread; did you mean engine.cpu.n_threads?"),
        ("{engines: [a_b], engine.a_b.devise: cpu}", "did you mean engine.a_b.device?"),
        ("zzz: 1", "unknown parameter zzz. README.md lists all parameters"),
    ],
)
def test_what_the_node_would_refuse_is_refused(
    tmp_path: Path, parameters: str, reason: str
) -> None:
    path = written(tmp_path, f"/**:\n  ros__parameters:\n    {parameters}\n")
    with pytest.raises(ConfigError) as raised:
        read_config(path)
    assert reason in str(raised.value)


@pytest.mark.parametrize("text", ["", "- 1", "{", "other: {}", "/**: {streams: [a]}"])
def test_what_is_no_parameter_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read_config(written(tmp_path, text))
