from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from edge_vlm_ros.cli import calibrate, simulate
from edge_vlm_ros.cli.picture_file import picture_file
from tools import plot_timeline


def test_a_png_in_a_folder_that_exists(tmp_path: Path) -> None:
    assert picture_file(str(tmp_path / "a.PNG")) == tmp_path / "a.PNG"
    assert picture_file("a.png") == Path("a.png")


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "is a folder"), ("a.foo", "does not end in .png"), ("nowhere/a.png", "no folder")],
)
def test_what_cannot_be_drawn_into_is_refused_before_the_work(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / name)
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        picture_file(path)
    for main, arguments in (
        (simulate.main, ["--profile", "rk3588", "--picture", path]),
        (calibrate.main, ["config/demo.yaml", "--picture", path]),
        (plot_timeline.main, ["trace.json", path]),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2 and words in capsys.readouterr().err
