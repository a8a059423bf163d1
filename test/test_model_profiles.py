"""The profiles in config/models: plausible, and true of projectors of the models' real sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import ROOT

from edge_vlm_ros.model_profile import ModelProfile, load_profile
from edge_vlm_ros.vision.mtmd_encoder import MtmdEncoder
from tools.make_random_vlm import ARCHITECTURES, projectors
from tools.make_random_vlm.projectors import Drawing, VisionShape

FOLDER = ROOT / "config" / "models"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
MARKUP = re.compile(r"<[^<>\s]+>")
KNOWN_MARKUP = {
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<end_of_utterance>",
    "<fake_token_around_image>",
    "<global-img>",
    "<img>",
    "</img>",
}
# Pixels a side of one view, pixels a side of one token.
VIEWS = {
    "demo": (224, 32),
    "internvl3-1b-npu": (448, 28),
    "smolvlm2-256m-npu": (512, 64),
    "smolvlm2-500m-npu": (512, 64),
}


def profile(name: str) -> ModelProfile:
    return load_profile(FOLDER / f"{name}.yaml")


def test_there_are_at_least_eight_beside_the_demo() -> None:
    assert len([name for name in NAMES if name != "demo" and not name.endswith("-npu")]) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_plausible(name: str) -> None:
    it = profile(name)
    assert it.name == name
    assert it.description
    template = it.template
    assert template.ask.startswith(template.stop_tokens[0]), "the question's turn is ended"
    assert template.close.startswith(template.stop_tokens[0]), "and the answer's"
    for text in (template.open, template.frame_prefix, template.frame_suffix, template.ask):
        assert set(MARKUP.findall(text)) <= KNOWN_MARKUP
    # A turn of the user is opened the same way at the beginning and after an answer.
    user = template.close.removeprefix(template.stop_tokens[0]).lstrip("\n")
    assert template.open.endswith(user)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_history_fits_with_room_for_questions(name: str) -> None:
    it = profile(name)
    frames = it.history.max_frames * (it.encoder.n_tokens + 8)
    assert frames + it.history.max_turns * 128 + 384 <= it.language.context_tokens


@pytest.mark.parametrize("name", [name for name in NAMES if name != "demo"])
def test_published_files_have_a_source(name: str) -> None:
    it = profile(name)
    published = {file for source in it.sources for file in source.files}
    wanted = {it.language.file.name, *(b.file.name for b in it.encoder.backends)}
    assert published <= wanted, "a source names only what the profile uses"
    for source in it.sources:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", source.repository)
    if any(backend.type == "mtmd" for backend in it.encoder.backends):
        assert published == wanted


@pytest.mark.parametrize(("name", "view"), VIEWS.items())
def test_tokens_of_one_view(name: str, view: tuple[int, int]) -> None:
    side, token = view
    encoder = profile(name).encoder
    assert encoder.size == (side, side)
    assert encoder.n_tokens == (side // token) ** 2
    assert (side / token).is_integer()


def test_the_guide_says_what_the_profiles_say() -> None:
    guide = (ROOT / "docs" / "models.md").read_text()
    for name in NAMES:
        if name == "smolvlm2-500m-npu":  # in one row with its smaller sibling
            continue
        row = re.search(
            rf"^\| `{re.escape(name)}`.*?\| (\d+) x (\d+) \| (\d+)", guide, re.MULTILINE
        )
        assert row, f"docs/models.md has no row for {name}"
        encoder = profile(name).encoder
        assert (int(row[1]), int(row[2])) == encoder.size
        assert int(row[3]) == encoder.n_tokens


# -------------------------------------------------- what llama.cpp's projectors make of them
class _WithoutTileSize(Drawing):
    """As projector files were before they said to which size pictures are enlarged."""

    def key(self, name: str, value: object) -> None:
        if name != "vision.preproc_image_size":
            super().key(name, value)


def _old_idefics3(drawing: Drawing) -> None:
    projectors.idefics3(
        _WithoutTileSize(drawing.writer, drawing.weights, drawing.shape, drawing.n_out)
    )


Draw = Callable[[Drawing], None] | None
# Patches and merging are the real model's; layers and widths within are cut down.
PROJECTORS: dict[str, tuple[str, VisionShape, Draw]] = {
    "smolvlm2-256m": ("smolvlm2", VisionShape(512, 16, merge=4), _old_idefics3),
    "smolvlm2-500m": ("smolvlm2", VisionShape(512, 16, merge=4), _old_idefics3),
    "smolvlm2-2.2b": ("smolvlm2", VisionShape(384, 14, merge=3), _old_idefics3),
    "internvl3-1b": ("internvl3", VisionShape(448, 14), None),
    "internvl3-2b": ("internvl3", VisionShape(448, 14), None),
    "qwen2-vl-2b": ("qwen2-vl", VisionShape(560, 14), None),
    "qwen2.5-vl-3b": ("qwen2.5-vl", VisionShape(560, 14), None),
    "qwen3-vl-2b": ("qwen3-vl", VisionShape(768, 16), None),
    "minicpm-v-4": ("minicpm-v-2.6", VisionShape(448, 14), None),
}


def test_every_profile_with_a_projector_is_tried() -> None:
    with_projector = {n for n in NAMES for b in profile(n).encoder.backends if b.type == "mtmd"}
    assert with_projector == set(PROJECTORS)


@pytest.mark.parametrize("name", PROJECTORS)
def test_a_projector_of_the_real_size_makes_so_many_tokens(name: str, tmp_path: Path) -> None:
    encoder = profile(name).encoder
    if name == "minicpm-v-4":  # the random model has 6 queries, the real one 64
        encoder = encoder.model_copy(update={"n_tokens": encoder.n_tokens - 64 + 6})
    architecture, shape, draw = PROJECTORS[name]
    random = ARCHITECTURES[architecture]
    n_embd = encoder.n_embd // (1 + random.language.deepstack)
    language = replace(random.language, n_embd=n_embd, n_head=n_embd // 32, n_layer=1)
    random = replace(random, language=language, vision=shape, draw=draw or random.draw)
    text, projector = random.write(tmp_path)
    backend = encoder.backends[0].model_copy(update={"file": projector})
    made = MtmdEncoder(encoder, backend, text)
    assert made.n_tokens == encoder.n_tokens
    made.close()
