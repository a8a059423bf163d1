"""Random-weight models for benchmarks work with the demo's prompt format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from tools.demo_model.random_gguf import SHAPES, random_matrix, write_random_gguf
from tools.reference_loop import ReferenceLoop


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0", "F16"])
def test_loads_and_generates(tmp_path: Path, arch: str, file_type: str) -> None:
    path = tmp_path / "random.gguf"
    small = replace(
        SHAPES["qwen2.5-0.5b"], arch=arch, n_layer=2, n_embd=128, n_head=2, n_ff=256,
        vocab_size=2048,
    )  # fmt: skip
    n_parameters = write_random_gguf(path, small, file_type)
    assert n_parameters > 2048 * 128
    loop = ReferenceLoop(path, n_ctx=512)
    try:
        assert loop.n_embd == 128
        for marker in ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"):
            assert len(loop.tokenize(marker, special=True)) == 1
        embeddings = np.random.default_rng(0).standard_normal((49, 128)).astype(np.float32)
        loop.add_embeddings(embeddings)
        first = list(loop.generate("Where did the red cup go?", 8, ignore_stop=True))
        assert len(first) == 8
        loop.reset()
        loop.add_embeddings(-embeddings)
        other = list(loop.generate("Where did the red cup go?", 8, ignore_stop=True))
        assert first != other, "the text depends on what was seen"
    finally:
        loop.close()


def test_equal_seeds_give_equal_files(tmp_path: Path) -> None:
    small = replace(SHAPES["smollm2-135m"], n_layer=1, vocab_size=1024)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_random_gguf(tmp_path / name, small, "Q8_0", seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c
    with pytest.raises(ValueError, match="file type"):
        write_random_gguf(tmp_path / "d", small, "Q5_K")


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0", "F16"])
def test_weights_have_mean_zero_and_the_scale_of_a_trained_matrix(file_type: str) -> None:
    matrix = random_matrix(np.random.default_rng(0), 512, 1024, file_type)
    kind = gguf.GGMLQuantizationType[file_type]
    weights = gguf.quants.dequantize(matrix, kind).astype(np.float64)
    assert weights.shape == (512, 1024)
    assert weights.std() == pytest.approx(1024**-0.5, rel=0.02)
    assert abs(weights.mean()) < 0.01 * weights.std()


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0"])
def test_some_tokens_are_never_chosen(tmp_path: Path, file_type: str) -> None:
    small = replace(SHAPES["smollm2-135m"], n_layer=1, vocab_size=1024)
    write_random_gguf(tmp_path / "a", small, file_type, never_chosen=(2, 5))
    tensors = gguf.GGUFReader(tmp_path / "a").tensors
    matrix = next(tensor for tensor in tensors if tensor.name == "token_embd.weight").data
    empty = np.flatnonzero(~matrix.any(axis=1))
    assert empty.tolist() == [2, 5]
