"""The set-up tool: what makes a step run again, the wheel cache, and failures that say why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.setup import interfaces, llama_wheel, packages, progress
from tools.setup.venv import Venv, digest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_wheel_is_kept_in_the_users_cache(cache: Path) -> None:
    directory = llama_wheel.cache_directory()
    assert directory.parent == cache / "edge_vlm_ros" / "wheels"
    assert directory.name.startswith("llama_cpp_python-0.3.36-")


def test_wheel_of_another_processor_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = llama_wheel.cache_directory()
    monkeypatch.setattr(llama_wheel, "processor_features", lambda: "avx fma")
    assert llama_wheel.cache_directory() != here


def test_wheel_of_other_build_arguments_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = llama_wheel.cache_directory()
    other = llama_wheel.declarations() | {"LLAMA_CMAKE_ARGS": "-DGGML_RPC=ON"}
    monkeypatch.setattr(llama_wheel, "declarations", lambda: other)
    assert llama_wheel.cache_directory() != here


def test_digest_separates_its_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc")


def test_stamp_holds_for_its_key_only(tmp_path: Path) -> None:
    venv = Venv(tmp_path, "jazzy", "3.11")
    assert not venv.is_done("step", "key")
    venv.done("step", "key")
    assert venv.is_done("step", "key")
    assert not venv.is_done("step", "other key")
    venv.undo("step")
    assert not venv.is_done("step", "key")


@pytest.mark.parametrize(
    "changed",
    ["package.xml", "msg/Metrics.msg", "srv/ListStreams.srv", "action/AskQuestion.action"],
)
def test_interfaces_are_rebuilt_when_their_files_change(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = Venv(tmp_path / ".venv", "jazzy", "3.11")
    copied = ["package.xml", "CMakeLists.txt", "tools/setup/executable.py.in"]
    copied += ["msg/Metrics.msg", "srv/ListStreams.srv", "action/AskQuestion.action"]
    for name in copied:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(interfaces, "ROOT", tmp_path)
    before = interfaces.build_key(venv)
    assert interfaces.build_key(venv) == before
    (tmp_path / changed).write_text("string changed\n")
    assert interfaces.build_key(venv) != before


def test_requirements_are_those_of_setup_py() -> None:
    declared = packages.declarations()
    wanted = packages.requirements("kilted")
    assert set(declared["INSTALL_REQUIRES"]) <= set(wanted)
    assert set(declared["EXTRAS_REQUIRE"]["ros-kilted"]) <= set(wanted)
    assert not any(name.startswith("ros-jazzy") for name in wanted)


def test_failed_command_shows_the_end_of_its_output_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log" / "step.log"
    code = "import sys; print('the cause'); sys.exit(3)"
    with pytest.raises(progress.Failed, match=r"exit code 3") as caught:
        progress.run([sys.executable, "-c", code], log, progress="$^")
    assert "the cause" in str(caught.value)
    assert str(log) in str(caught.value)
    assert log.read_text() == "the cause\n"


def test_what_stopped_says_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise progress.Failed("the cause")

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert (progress.exit_code(fail), progress.exit_code(interrupt, "converter")) == (1, 130)
    first, _, second = capsys.readouterr().err.splitlines()
    assert first == "setup: the cause" and second.startswith("converter: interrupted")


def test_unknown_distribution_is_refused_before_anything_is_touched() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tools.setup"],
        cwd=ROOT,
        env={"ROS_DISTRO": "humble", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "humble" in result.stderr and "jazzy and kilted" in result.stderr


def test_python_out_of_range_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    result = subprocess.run(
        ["bash", "tools/setup/setup.sh"],
        cwd=ROOT,
        env={"PYTHON": str(old), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert f"PYTHON={old} is not CPython 3.10 to 3.13" in result.stderr
