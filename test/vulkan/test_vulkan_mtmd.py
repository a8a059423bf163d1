"""The mtmd encoder on a GPU backend computes what it computes on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_vlm_ros.model_profile import EncoderProfile, MtmdBackend
from edge_vlm_ros.vision.mtmd_encoder import MtmdEncoder
from tools.make_random_vlm import ARCHITECTURES


@pytest.mark.parametrize("name", ["internvl3", "smolvlm2"])
def test_embeddings_agree_with_the_cpus(name: str, tmp_path: Path) -> None:
    spec = ARCHITECTURES[name]
    language, mmproj = spec.write(tmp_path)
    rgb = np.random.default_rng(0).integers(0, 256, (*spec.size, 3), np.uint8)
    rows = {}
    for device in ("cpu", "vulkan:0"):
        backend = MtmdBackend(type="mtmd", file=mmproj, device=device)
        profile = EncoderProfile(
            backends=(backend,),
            size=spec.size,
            resize="stretch",
            n_tokens=spec.n_tokens,
            n_embd=spec.language.n_embd,
        )
        encoder = MtmdEncoder(profile, backend, language)
        assert encoder.backend.startswith(
            "llama.cpp mtmd, " + ("CPU" if device == "cpu" else device)
        )
        rows[device] = encoder.encode(rgb).ravel()
        encoder.close()
    cpu, gpu = rows.values()
    assert cpu @ gpu / np.linalg.norm(cpu) / np.linalg.norm(gpu) > 0.999
    assert not np.array_equal(cpu, gpu), "the GPU was not used"
