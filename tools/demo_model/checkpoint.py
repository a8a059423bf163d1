"""A run's folder: config.json, tokenizer.json, checkpoint/{lm,vision}.safetensors (float16)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from edge_vlm_ros.demo.world import World
from tools.demo_model.language_model import LanguageConfig, LanguageModel, transformers_config
from tools.demo_model.tokenizer import PRE_TOKENIZER
from tools.demo_model.vision_model import VisionConfig, VisionEncoder


@dataclass(frozen=True)
class TrainedModel:
    encoder: VisionEncoder
    language: LanguageModel
    tokenizer: dict[str, Any]  # the content of tokenizer.json


def save_config(run: Path, vision: VisionConfig, language: LanguageConfig, world: World) -> None:
    config = {
        "lm": language.to_json(),
        "vision": asdict(vision),
        "tokens": vision.tokens,
        "pre": PRE_TOKENIZER,
        "world": asdict(world),
        "hf": transformers_config(language),
    }
    (run / "config.json").write_text(json.dumps(config, indent=1))


def save_weights(run: Path, encoder: VisionEncoder, language: LanguageModel) -> None:
    """Replace the run's weights; a reader never sees half a file."""
    lm = {k: v.half() for k, v in language.state_dict().items() if k != "lm_head.weight"}
    vision = {k: v.half() if v.dim() > 1 else v for k, v in encoder.state_dict().items()}
    folder = run / "checkpoint"
    folder.mkdir(exist_ok=True)
    for name, tensors in (("lm", lm), ("vision", vision)):
        new = folder / f"{name}.new"
        save_file({k: v.contiguous().clone() for k, v in tensors.items()}, new)
        os.replace(new, folder / f"{name}.safetensors")


def load_run(run: Path) -> TrainedModel:
    """Load what a training run (or models/demo) holds, in float32 on the CPU."""
    config = json.loads((run / "config.json").read_text())
    encoder = VisionEncoder(VisionConfig(**config["vision"])).eval()
    encoder.load_state_dict(_load(run / "checkpoint" / "vision.safetensors"))
    language = LanguageModel(LanguageConfig.from_json(config["lm"])).eval()
    weights = _load(run / "checkpoint" / "lm.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    language.load_state_dict(weights)
    return TrainedModel(encoder, language, json.loads((run / "tokenizer.json").read_text()))


def _load(path: Path) -> dict[str, Tensor]:
    tensors = load_file(path)
    return {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
