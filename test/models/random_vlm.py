"""Random models of all architectures, written once for a test run, and their profiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from helpers import ROOT

from edge_vlm_ros.history import Grid
from edge_vlm_ros.model_profile import (
    EncoderProfile,
    HistoryProfile,
    LanguageProfile,
    ModelProfile,
    MtmdBackend,
    TemplateProfile,
    load_profile,
)
from tools.make_random_vlm import ARCHITECTURES, RandomVlm
from tools.make_random_vlm.language import LanguageShape
from tools.make_random_vlm.projectors import VisionShape


@dataclass(frozen=True)
class Made:
    """The files of one architecture and a profile of them."""

    spec: RandomVlm
    language: Path
    mmproj: Path
    profile: ModelProfile

    @property
    def backend(self) -> MtmdBackend:
        backend = self.profile.encoder.backends[0]
        assert isinstance(backend, MtmdBackend)
        return backend


PUBLISHED = {
    "smolvlm2-256m": ("smolvlm2", VisionShape(512, 16, merge=4)),
    "smolvlm2-500m": ("smolvlm2", VisionShape(512, 16, merge=4)),
    "smolvlm2-2.2b": ("smolvlm2", VisionShape(384, 14, merge=3)),
    "internvl3-1b": ("internvl3", VisionShape(448, 14)),
    "internvl3-2b": ("internvl3", VisionShape(448, 14)),
    "minicpm-v-4": ("minicpm-v-4.0", VisionShape(448, 14, n_queries=64)),
    "qwen2-vl-2b": ("qwen2-vl", VisionShape(560, 14)),
    "qwen2.5-vl-3b": ("qwen2.5-vl", VisionShape(560, 14)),
    "qwen3-vl-2b": ("qwen3-vl", VisionShape(768, 16)),
}
"""Profiles in config/models with a projector file: the architecture, and the sizes that decide how
many tokens a frame is."""

SPECS = {
    **ARCHITECTURES,
    # Granite scales tokens and images alike, so tokens in a frame are still right.
    "scaled-embeddings": replace(ARCHITECTURES["smolvlm2"], language=LanguageShape("granite")),
}


def make(name: str, folder: Path) -> Made:
    """The architecture ``name``, or the one of a profile in config/models: then with its picture
    and patch sizes, its template and its numbers of tokens, but narrow."""
    if name in PUBLISHED:
        return _make_published(name, folder)
    spec = SPECS[name]
    language, mmproj = spec.write(folder / name)
    text = dict(spec.template)
    stop = text.pop("stop")
    profile = ModelProfile(
        name=name,
        language=LanguageProfile(file=language, context_tokens=spec.language.n_ctx),
        encoder=EncoderProfile(
            backends=(MtmdBackend(type="mtmd", file=mmproj),),
            size=spec.size,
            resize="stretch",
            n_tokens=spec.n_tokens,
            n_embd=spec.n_embd_frame,
            grid=None if spec.grid is None else Grid(*spec.grid),
        ),
        template=TemplateProfile(**text, stop_tokens=(stop,)),
        history=HistoryProfile(max_frames=6, keep_frames=3, max_turns=2),
    )
    return Made(spec, language, mmproj, profile)


def _make_published(name: str, folder: Path) -> Made:
    profile = load_profile(ROOT / "config" / "models" / f"{name}.yaml")
    architecture, vision = PUBLISHED[name]
    spec = replace(
        ARCHITECTURES[architecture],
        size=profile.encoder.size,
        n_tokens=profile.encoder.n_tokens,
        vision=vision,
    )
    language, mmproj = spec.write(folder / name)
    backend = MtmdBackend(type="mtmd", file=mmproj)
    encoder = {"backends": (backend,), "n_embd": spec.n_embd_frame}
    profile = profile.model_copy(
        update={
            "language": LanguageProfile(file=language, context_tokens=spec.language.n_ctx),
            "encoder": profile.encoder.model_copy(update=encoder),
        }
    )
    return Made(spec, language, mmproj, profile)


def frames(spec: RandomVlm, n: int, seed: int = 0) -> list[npt.NDArray[np.uint8]]:
    """Noise with a different brightness each."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (n, *spec.size, 3), np.uint8)
    return [frame // np.uint8(1 + index) for index, frame in enumerate(noise)]
