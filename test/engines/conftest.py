"""The demo model, its template and real frames, loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
from engine_helpers import Driver, Encode, Items, MakeDriver, items_of
from numpy.typing import NDArray

from edge_vlm_ros.demo.questions import Item, make_item
from edge_vlm_ros.demo.render import SceneRenderer
from edge_vlm_ros.engines import native_log
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.model_profile import ModelProfile, load_profile
from edge_vlm_ros.runtime.prompt import PromptTemplate, prompt_template
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def profile() -> ModelProfile:
    return load_profile(ROOT / "config" / "models" / "demo.yaml")


@pytest.fixture(scope="session")
def model(profile: ModelProfile) -> Iterator[LlamaModel]:
    model = LlamaModel(profile.language.file)
    # Another test of this process may have taken the native log for itself.
    llama.llama_log_set(native_log._receive, None)
    yield model
    model.close()


@pytest.fixture(scope="session")
def prompt(profile: ModelProfile, model: LlamaModel) -> PromptTemplate:
    return prompt_template(profile, model)


@pytest.fixture(scope="session")
def encode(profile: ModelProfile) -> Encode:
    """(seed, n_frames) -> a scene with its question, and its embeddings."""
    encoder = OnnxEncoder(profile.encoder, profile.encoder.backends[0])

    def encode(seed: int, n_frames: int) -> tuple[Item, list[NDArray[np.float32]]]:
        item = make_item(seed, n_frames)
        renderer = SceneRenderer(item.scene, seed)
        return item, [encoder.encode(renderer.frame(k)) for k in range(n_frames)]

    return encode


@pytest.fixture(scope="session")
def story(prompt: PromptTemplate, encode: Encode) -> Items:
    """A history of six frames."""
    return items_of(prompt, encode(700003, 6)[1])


@pytest.fixture(scope="session")
def other_story(prompt: PromptTemplate, encode: Encode) -> Items:
    return items_of(prompt, encode(700035, 6)[1])


@pytest.fixture
def make_driver(model: LlamaModel, prompt: PromptTemplate) -> Iterator[MakeDriver]:
    """Makes engines that are closed after the test."""
    drivers: list[Driver] = []

    def make(**settings: Any) -> Driver:
        drivers.append(Driver(model, prompt, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.engine.close()
