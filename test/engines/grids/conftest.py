"""The demo model as a Qwen3-VL: the same frames, in a grid."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_helpers import Encode, Items, items_of
from grid_models import grid_model

from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.history import Grid
from edge_vlm_ros.model_profile import ModelProfile
from edge_vlm_ros.runtime.prompt import PromptTemplate, prompt_template


@pytest.fixture(scope="session")
def grid_profile(profile: ModelProfile) -> ModelProfile:
    encoder = profile.encoder.model_copy(update={"grid": Grid(7, 7)})
    return profile.model_copy(update={"encoder": encoder})


@pytest.fixture(scope="session")
def model(profile: ModelProfile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tmp_path_factory.mktemp("models") / "qwen3vl.gguf"
    model = LlamaModel(grid_model(profile.language.file, path, "qwen3vl"))
    yield model
    model.close()


@pytest.fixture(scope="session")
def prompt(grid_profile: ModelProfile, model: LlamaModel) -> PromptTemplate:
    return prompt_template(grid_profile, model)


@pytest.fixture(scope="session")
def story(prompt: PromptTemplate, encode: Encode) -> Items:
    """A history of six frames."""
    return items_of(prompt, encode(700003, 6)[1])


@pytest.fixture(scope="session")
def other_story(prompt: PromptTemplate, encode: Encode) -> Items:
    return items_of(prompt, encode(700035, 6)[1])
