"""`ros2 run edge_vlm_ros simulate`, called as a function."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import ROOT

from edge_vlm_ros.cli import simulate


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["simulate", *map(str, arguments)])
    return simulate.main()


def test_table_verdict_and_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "board.png"
    live = ("--fps", "0.1", "--questions-per-minute", "4", "--duration", "120")
    policies = ("--policy", "single:cpu,serial:cpu", "--picture", picture)
    assert _run(monkeypatch, "--profile", "rk3588", *live, *policies) == 0
    shown = capsys.readouterr().out
    assert "31 of 38 numbers are assumptions" in shown
    table = [line.split() for line in shown.splitlines() if line.startswith(("POLICY", "s"))]
    assert [row[0] for row in table[:3]] == ["POLICY", "single:cpu", "serial:cpu"]
    assert "single:cpu: keeps up with the cameras\n  0 of 24 frames are lost" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_too_many_frames_are_said_to_be_too_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live = ("--fps", "5", "--questions-per-minute", "0", "--duration", "60")
    assert _run(monkeypatch, *live, "--policy", "single:cpu", "--picture") == 0
    shown = capsys.readouterr().out
    assert "does NOT keep up" in shown
    assert "npu is busy 9" in shown and "at most 0.59 frames a second of each stream" in shown


def test_all_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    burst = ("--burst", "--answer-tokens", "16", "--profile", "m4max", "--picture")
    assert _run(monkeypatch, *burst, "--policy", "batched:gpu") == 0
    assert "16 frames and 8 questions all at once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--profile", "toaster"), "m4max, qcs6490, rk3588"),
        (("--policy", "single:tpu"), "tpu"),
        (("--fps", "0"), "frames"),
        (("--max-frames", "128"), "model.context_tokens of rk3588 is 8192: lower --max-frames"),
    ],
)
def test_what_cannot_be_simulated(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    text: str,
) -> None:
    assert _run(monkeypatch, *arguments, "--picture") == 2
    said = capsys.readouterr().err
    assert text in said and "pydantic" not in said


@pytest.mark.parametrize(
    ("option", "least"),
    [
        ("--max-frames", 2),
        ("--streams", 1),
        ("--answer-tokens", 1),
        ("--prompt-tokens", 1),
        ("--max-pending", 1),
    ],
)
def test_a_number_that_is_too_small_is_told_the_least(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, least: int
) -> None:
    with pytest.raises(SystemExit) as ended:
        _run(monkeypatch, option, str(least - 1))
    assert ended.value.code == 2
    assert f"{option}: must be a whole number of {least} or more" in capsys.readouterr().err


def test_a_profile_of_ones_own_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shipped = (ROOT / "config" / "profiles" / "rk3588.yaml").read_text()
    own = tmp_path / "own.yaml"
    own.write_text(shipped.replace("context_tokens: {value: 8192", "context_tokens: {value: 0"))
    assert _run(monkeypatch, "--profile", own, "--picture") == 2
    assert capsys.readouterr().err == (
        f"simulate: profile {own} cannot be simulated:\n"
        "  model.context_tokens.value: is 0; it must be greater than or equal to 1; correct the "
        "value\n"
    )
