"""Converts the demo encoder and simulates it on the frames of held-out items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_vlm_ros.demo.questions import Item, make_item
from edge_vlm_ros.demo.render import SceneRenderer
from edge_vlm_ros.demo.texture import TRAINED_SIZE
from edge_vlm_ros.model_profile import EncoderProfile, load_profile
from edge_vlm_ros.vision.encoder import Embeddings, RgbImage
from tools.convert_encoder.pictures import reference_picture
from tools.convert_encoder.rknn_conversion import Conversion, convert_rknn, onnx_backend
from tools.reference_loop import ReferenceLoop, load_heldout

ROOT = Path(__file__).resolve().parents[3]
PROFILE = ROOT / "config" / "models" / "demo.yaml"
MODELS = ROOT / "models" / "demo"
N_ITEMS = 12
_N_CALIBRATION = 24


@dataclass(frozen=True)
class Demo:
    """The .rknn file, and the simulator's embeddings of ``pictures``: of the frames of all items
    one after another, then of the self-test's picture and a black one."""

    file: Path
    profile: EncoderProfile
    items: tuple[Item, ...]
    pictures: RgbImage
    conversion: Conversion


def convert_demo(file: Path, *, int8: bool = False) -> Demo:
    """Make ``file`` and simulate it; in int8 calibrated on frames of other scenes."""
    profile = load_profile(PROFILE).encoder
    entries = load_heldout(MODELS / "heldout.json")[:N_ITEMS]
    items = tuple(make_item(e["seed"], e["n_frames"], e["n_commit"]) for e in entries)
    frames = [
        rgb
        for item, entry in zip(items, entries, strict=True)
        for rgb in _frames(item, entry["seed"])
    ]
    reference = reference_picture(profile)
    pictures = np.concatenate([np.stack(frames), reference, np.zeros_like(reference)])
    conversion = convert_rknn(
        profile,
        onnx_backend(profile),
        file,
        pictures,
        calibration=np.stack(list(_calibration())) if int8 else None,
    )
    return Demo(file, profile, items, pictures, conversion)


def count_right(demo: Demo) -> int:
    """How many items the demo language model answers rightly with the simulator's embeddings."""
    loop = ReferenceLoop(MODELS / "lm.Q8_0.gguf")
    simulated = iter(demo.conversion.simulated)
    try:
        return sum(_answer(loop, item, simulated) == item.answer for item in demo.items)
    finally:
        loop.close()


def _answer(loop: ReferenceLoop, item: Item, embeddings: Iterator[Embeddings]) -> str:
    loop.reset()
    for index in range(item.scene.n_frames):
        loop.add_embeddings(next(embeddings))
        for turn in item.commits:
            if turn.after_frame == index:
                loop.commit(turn.question, turn.answer)
    return loop.ask(item.question.text)[1]


def _frames(item: Item, seed: int) -> Iterator[RgbImage]:
    renderer = SceneRenderer(item.scene, seed, width=TRAINED_SIZE, height=TRAINED_SIZE)
    for k in range(item.scene.n_frames):
        yield renderer.frame(k)


def _calibration() -> Iterator[RgbImage]:
    for seed in range(9000, 9000 + _N_CALIBRATION):
        yield next(_frames(make_item(seed, 3, 0), seed))
