"""Sizes of the models that can be trained."""

from __future__ import annotations

from dataclasses import dataclass

from edge_vlm_ros.demo.world import World
from tools.demo_model.batches import RowShape
from tools.demo_model.language_model import LanguageConfig
from tools.demo_model.vision_model import VisionConfig


@dataclass(frozen=True)
class Preset:
    """The vocabulary size of `language` is replaced by the tokenizer's."""

    vision: VisionConfig
    language: LanguageConfig
    world: World
    rows: RowShape


PRESETS = {
    "s": Preset(
        VisionConfig(), LanguageConfig(), World(), RowShape(rows=48, tokens=1152, frames=12)
    ),
    # A toy that learns a little on a CPU, to try the code.
    "xs": Preset(
        VisionConfig(size=64, d=96, layers=2, heads=3, hidden=192, d_lm=128),
        LanguageConfig(n_embd=128, n_layer=2, n_head=2, n_kv=1, head_dim=64, n_ff=256),
        World(n_types=4, n_colors=4, max_objects=3),
        RowShape(rows=2, tokens=384, frames=12),
    ),
}
