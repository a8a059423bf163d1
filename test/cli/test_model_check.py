"""`ros2 run edge_vlm_ros model check`: every reason for which a model cannot run is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import MODEL, PROFILE, ROOT

from edge_vlm_ros.cli import model_check, model_memory
from edge_vlm_ros.engines.model import LlamaModel
from tools.make_random_vlm import ARCHITECTURES

LANGUAGE = MODEL / "lm.Q8_0.gguf"


class Profile:
    """The demo's profile, to be changed and written into a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.document: dict[str, Any] = yaml.safe_load(PROFILE.read_text())
        self.document["language"]["file"] = str(LANGUAGE)
        self.encoder["backends"][0]["file"] = str(MODEL / "vision.onnx")
        self.encoder["reference"] = str(MODEL / "reference.npz")

    @property
    def encoder(self) -> dict[str, Any]:
        encoder: dict[str, Any] = self.document["encoder"]
        return encoder

    def check(self, *arguments: str) -> int:
        path = self.folder / "profile.yaml"
        path.write_text(yaml.safe_dump(self.document))
        return model_check.main(["check", str(path), *arguments])


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return Profile(tmp_path)


def problems(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("PROBLEM")]


# ------------------------------------------------------------------------ what can run
def test_the_demo_can_run_and_is_told_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert model_check.main(["check", "demo", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert problems(out) == []
    assert "SHA-256 as stated" in out
    assert "encoder self-test passed: cosine" in out
    assert "language on engine cpu: device cpu, 1 thread on any core" in out
    assert "  encoder: ONNX Runtime, CPU, 1 thread" in out
    assert out.endswith("Can run here: yes\n")


def test_without_ros() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('rclpy', 'rcl_interfaces', 'ament_index_python')))\n"
        "from edge_vlm_ros.cli.model_check import main\n"
        "sys.exit(main(['check', 'demo']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr


def test_engines_of_a_parameter_file(capsys: pytest.CaptureFixture[str]) -> None:
    parameters = str(ROOT / "config" / "two_engines.yaml")
    assert model_check.main(["check", "demo", "--params-file", parameters]) == 0
    out = capsys.readouterr().out
    assert "language on engine cpu: device cpu" in out
    assert "language on engine second: device rpc" in out
    assert "weights (rpc second)" in out, "a server process has its own copy of the weights"


def test_a_parameter_file_of_a_board_with_more_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usable = os.sched_getaffinity(0)
    here, nowhere = min(usable), max(usable) + 1
    parameters = tmp_path / "board.yaml"
    parameters.write_text(
        f"/**:\n  ros__parameters:\n    engines: [cpu]\n    engine.cpu.cpus: [{here}, {nowhere}]\n"
    )
    assert model_check.main(["check", "demo", "--params-file", str(parameters)]) == 1
    out = capsys.readouterr().out
    [line] = problems(out)
    assert f"cpus [{nowhere}] are not among the cores" in line
    assert "engine.cpu.cpus" in line
    assert "encoder self-test passed" in out and "ok       memory" in out
    assert f"engine cpu: device cpu, 1 thread on cores [{here}]" in out
    assert out.endswith("Can run here: no, see PROBLEM (1)\n")


@pytest.mark.parametrize("architecture", ["smolvlm2", "qwen2-vl", "qwen3-vl"])
def test_a_projector_file_is_an_encoder_too(
    architecture: str, profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vlm(profile, tmp_path, architecture)
    assert profile.check() == 0
    assert "  encoder: llama.cpp mtmd, CPU, 1 thread" in capsys.readouterr().out


def test_a_backend_that_does_not_start_is_passed_over_with_its_reason(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nothing")
    first = {"type": "onnx", "file": str(broken), "input": "image", "output": "embeds"}
    profile.encoder["backends"].insert(0, first)
    assert profile.check() == 0
    out = capsys.readouterr().out
    assert f"note     encoder 1, onnx  is not used here: ONNX Runtime cannot load {broken}" in out
    assert "  encoder: ONNX Runtime, CPU, 1 thread" in out
    assert f"{(MODEL / 'vision.onnx').stat().st_size / 2**20:8.1f} MiB  encoder" in out


# --------------------------------------------------------------------- what cannot run
def test_missing_files_are_named_with_the_command_that_fetches_them(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.document["sources"] = [{"repository": "someone/a-GGUF", "files": ["a.gguf", "b.gguf"]}]
    profile.document["language"]["file"] = str(tmp_path / "there" / "a.gguf")
    profile.encoder["backends"] = [{"type": "mtmd", "file": str(tmp_path / "there" / "b.gguf")}]
    assert profile.check() == 1
    out = capsys.readouterr().out
    assert len(problems(out)) == 2
    assert f"  hf download someone/a-GGUF a.gguf b.gguf --local-dir {tmp_path / 'there'}" in out
    assert out.endswith("Can run here: no, see PROBLEM (2)\n")


def test_a_web_address_is_fetched_with_curl(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"repository": "https://example.org/models/", "files": ["a.gguf"]}
    profile.document["sources"] = [source]
    profile.document["language"]["file"] = str(tmp_path / "a.gguf")
    assert profile.check() == 1
    assert "--remote-name-all https://example.org/models/a.gguf" in capsys.readouterr().out


def test_a_missing_encoder_file_is_no_problem_beside_another(
    profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.encoder["backends"].insert(0, {"type": "rknn", "file": "vision.rknn"})
    assert profile.check() == 0
    out = capsys.readouterr().out
    assert "vision.rknn. It is made from the model's encoder" in out
    assert "note     encoder 1, rknn  not tried: its file is missing" in out


def test_a_wrong_digest(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    profile.document["language"]["sha256"] = "0" * 64
    assert profile.check() == 1
    [line] = problems(capsys.readouterr().out)
    assert "SHA-256" in line and "fetch it again" in line


def test_a_download_that_was_cut_off(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(LANGUAGE.read_bytes()[:-1000])
    profile.document["language"] = {"file": str(cut), "context_tokens": 4096}
    assert profile.check() == 1
    [line] = problems(capsys.readouterr().out)
    assert "is not a complete GGUF file" in line
    assert "the download was cut off; fetch it again" in line


def test_a_web_page_instead_of_the_file(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.gguf"
    page.write_text("<!doctype html>")
    profile.document["language"] = {"file": str(page), "context_tokens": 4096}
    assert profile.check() == 1
    assert "is no GGUF file; is it a web page" in problems(capsys.readouterr().out)[0]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("language.context_tokens", 8192, "the file was trained on 4096"),
        ("encoder.n_embd", 512, "the language model takes 256"),
        ("template.stop_tokens", ["<end>"], "an answer would never end there"),
        ("template.frame_prefix", "<global-img>", "not one token of this vocabulary"),
        ("language.context_tokens", 600, "has no room for the 6 frames"),
    ],
)
def test_a_wrong_field(
    profile: Profile, capsys: pytest.CaptureFixture[str], field: str, value: object, text: str
) -> None:
    part, _, name = field.partition(".")
    profile.document[part][name] = value
    assert profile.check() == 1
    assert any(text in line for line in problems(capsys.readouterr().out))


def test_files_that_were_exchanged(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vlm(profile, tmp_path, "smolvlm2")
    profile.document["language"]["file"] = str(tmp_path / "mmproj.gguf")
    assert profile.check() == 1
    assert "is a projector (mmproj), not a language model" in problems(capsys.readouterr().out)[0]


def test_an_architecture_that_cannot_be_forked(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vlm(profile, tmp_path, "lfm2-vl")
    assert profile.check() == 1
    out = capsys.readouterr().out
    assert any("cannot be forked at an older version" in line for line in problems(out))


def test_no_backend_that_starts(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    profile.encoder["backends"][0]["output"] = "nothing"
    assert profile.check() == 1
    [line] = problems(capsys.readouterr().out)
    assert "none of the backends starts here" in line


@pytest.mark.parametrize(
    ("total", "remedy"), [(200, "take a smaller model"), (2000, "end other programs")]
)
def test_too_little_memory(
    profile: Profile,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    total: int,
    remedy: str,
) -> None:
    monkeypatch.setattr(model_memory, "host_memory", lambda: (100 * 2**20, total * 2**20))
    assert profile.check() == 1
    [line] = problems(capsys.readouterr().out)
    assert f"free 100 MiB of {total} MiB: {remedy}" in line


def test_a_container_has_the_memory_of_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text("1048576\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    monkeypatch.setattr(model_memory, "_CGROUP", tmp_path)
    assert model_memory.host_memory() == (48576, 1048576)
    (tmp_path / "memory.max").write_text("max\n")
    assert model_memory.host_memory()[1] > 1048576


def test_a_device_that_does_not_exist(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.check("--device", "cuda:7") == 1
    assert "there is no device cuda:7, only" in problems(capsys.readouterr().out)[0]


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["demo", "--n-ctx", "-1"], ["demo", "--device", "a b"]]
)
def test_unusable_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert model_check.main(["check", *arguments]) == 2
    assert capsys.readouterr().err.startswith("model: ")


# ----------------------------------------------------------------------------- memory
def test_bytes_of_a_cell() -> None:
    model = LlamaModel(LANGUAGE, repack=False)
    # 8 layers, K and V of 2 heads with 64 values; a block of q8_0 has 34 bytes for 32 values.
    assert model_memory.bytes_per_cell(model, "f16") == 8 * 2 * 128 * 2
    assert model_memory.bytes_per_cell(model, "q8_0") == 8 * 2 * 128 * 34 // 32
    model.close()


def vlm(profile: Profile, folder: Path, architecture: str) -> None:
    """Make the profile that of a random model of this architecture."""
    random = ARCHITECTURES[architecture]
    language, projector = random.write(folder)
    template = dict(random.template)
    template["stop_tokens"] = [template.pop("stop")]
    document = profile.document
    document["language"] = {"file": str(language), "context_tokens": 4096}
    document["template"] = template
    document["encoder"] = {
        "backends": [{"type": "mtmd", "file": str(projector)}],
        "size": list(random.size),
        "resize": "stretch",
        "n_tokens": random.n_tokens,
        "n_embd": random.n_embd_frame,
        "grid": random.grid and list(random.grid),
    }
