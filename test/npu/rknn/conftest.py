"""The demo encoder as an .rknn file, and what the toolkit's simulator computes with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rknn_demo import Demo, convert_demo


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return convert_demo(tmp_path_factory.mktemp("rknn") / "vision.rknn")


@pytest.fixture(scope="session")
def demo_int8(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return convert_demo(tmp_path_factory.mktemp("rknn_int8") / "vision.rknn", int8=True)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints figures past pytest's capture: they are what these tests are run for."""

    def print_it(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}")

    return print_it
