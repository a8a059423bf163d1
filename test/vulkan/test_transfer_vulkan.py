"""KV moves between the CPU and a GPU backend unchanged, both ways."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_vlm_ros.engines.devices import open_device
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.model_profile import load_profile
from edge_vlm_ros.runtime.prompt import PromptTemplate, prompt_template

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "engines"))

from engine_helpers import Driver, Items, assert_nothing_is_left, items_of  # noqa: E402
from transfer_helpers import check_transfer  # noqa: E402

PROFILE = ROOT / "config" / "models" / "demo.yaml"
FRAME_ROWS = 32
"""The software driver computes a few tokens a second, so frames are small. With 5 to 16 rows it
crashes: Mesa 22.3's, inside its own shader code."""


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, LlamaModel]]:
    path = load_profile(PROFILE).language.file
    found = {text: LlamaModel(path, device=open_device(text)) for text in ("cpu", "vulkan:0")}
    yield found
    for model in found.values():
        model.close()


@pytest.fixture(scope="module")
def prompt(models: dict[str, LlamaModel]) -> PromptTemplate:
    return prompt_template(load_profile(PROFILE), models["cpu"])


@pytest.fixture(scope="module")
def drivers(models: dict[str, LlamaModel], prompt: PromptTemplate) -> Iterator[dict[str, Driver]]:
    found = {
        text: Driver(model, prompt, n_ctx=512, max_branches=4, n_threads=2)
        for text, model in models.items()
    }
    yield found
    for driver in found.values():
        driver.engine.close()


@pytest.fixture(scope="module")
def short_story(models: dict[str, LlamaModel], prompt: PromptTemplate) -> Items:
    """Frames of noise, in which the model sees a few things all the same."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((6, FRAME_ROWS, models["cpu"].n_embd)).astype(np.float32)
    return items_of(prompt, rows)


@pytest.mark.parametrize(("source", "target"), [("cpu", "vulkan:0"), ("vulkan:0", "cpu")])
def test_transfer(drivers: dict[str, Driver], short_story: Items, source: str, target: str) -> None:
    check_transfer(drivers[source], drivers[target], short_story, same_numbers=False)
    for driver in drivers.values():
        assert_nothing_is_left(driver)
    assert drivers[source].engine.layout == drivers[target].engine.layout
