"""Loading a model, refusing one, and its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import pytest
from tiny_models import tiny_gemma3, tiny_llama, tiny_mamba, tiny_qwen2vl

from edge_vlm_ros.engines import native_log
from edge_vlm_ros.engines.errors import ModelLoadError, UnsupportedModelError
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.model_profile import ModelProfile


@pytest.fixture(autouse=True)
def native_log_is_ours(model: LlamaModel) -> None:
    """Another test of this process may have taken the native log for itself."""
    llama.llama_log_set(native_log._receive, None)


# -------------------------------------------------------------------------------- loading
def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no model file .*nowhere.gguf"):
        LlamaModel(tmp_path / "nowhere.gguf")
    with pytest.raises(ModelLoadError, match="no model file"):
        LlamaModel(tmp_path)


@pytest.mark.parametrize("content", ["truncated", "no gguf", "text", "empty"])
def test_a_file_that_is_no_whole_model(tmp_path: Path, profile: ModelProfile, content: str) -> None:
    whole = profile.language.file.read_bytes()
    path = tmp_path / "broken.gguf"
    path.write_bytes(
        {
            "truncated": whole[: len(whole) // 2],
            "no gguf": bytes(range(256)) * 10,
            "text": b"model: demo\n",
            "empty": b"",
        }[content]
    )
    with pytest.raises(ModelLoadError, match="complete GGUF file") as refusal:
        LlamaModel(path)
    assert "broken.gguf" in str(refusal.value)
    assert "gave no reason" not in str(refusal.value)


def test_progress_is_reported(profile: ModelProfile) -> None:
    fractions: list[float] = []
    model = LlamaModel(profile.language.file, fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    model.close()
    model.close()  # again changes nothing
    assert "qwen3" in model.description  # may still be asked for


def test_facts(model: LlamaModel, profile: ModelProfile) -> None:
    assert model.n_embd == profile.encoder.n_embd
    assert model.metadata("general.architecture") == "qwen3"
    assert model.metadata("no.such.key") is None
    assert model.is_batch_invariant("q8_0")
    assert not model.is_batch_invariant("f16")
    assert 6_000_000 < model.n_bytes < 8_000_000


# -------------------------------------------------------------------------------- refusals
@pytest.fixture
def supported(tmp_path: Path) -> Iterator[LlamaModel]:
    """The control: what is refused below is not refused for being tiny."""
    model = LlamaModel(tiny_llama(tmp_path / "llama.gguf"))
    yield model
    model.close()


def test_a_tiny_model_with_full_attention_loads(supported: LlamaModel) -> None:
    assert supported.metadata("general.architecture") == "llama"
    assert not supported.is_batch_invariant("q8_0")  # F32 weights


def test_models_with_m_rope_load(tmp_path: Path) -> None:
    model = LlamaModel(tiny_qwen2vl(tmp_path / "qwen2vl.gguf"))
    assert model.has_grids and model.n_embd_frame == model.n_embd
    model.close()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (tiny_mamba, "recurrent state"),
        (tiny_gemma3, "sliding window"),
    ],
)
def test_models_whose_state_cannot_be_forked(tmp_path: Path, make: Any, reason: str) -> None:
    path = make(tmp_path / "odd.gguf")
    with pytest.raises(UnsupportedModelError, match=f"odd.gguf .*{reason}.*Qwen3"):
        LlamaModel(path)


@pytest.mark.parametrize(
    ("predicate", "value", "reason"),
    [
        ("llama_model_is_hybrid", True, "recurrent state"),
        ("llama_model_is_diffusion", True, "plain decoder"),
        ("llama_model_has_encoder", True, "plain decoder"),
        ("llama_model_n_embd_inp", 1024, "embeddings are wider than its layers"),
        ("llama_model_rope_type", 24, "positions of its image tokens"),
    ],
)
def test_further_refusals(
    monkeypatch: pytest.MonkeyPatch,
    profile: ModelProfile,
    predicate: str,
    value: object,
    reason: str,
) -> None:
    monkeypatch.setattr(llama, predicate, lambda handle: value)
    with pytest.raises(UnsupportedModelError, match=reason):
        LlamaModel(profile.language.file)


# -------------------------------------------------------------------------------- vocabulary
def test_markers_are_plain_text_unless_asked_for(model: LlamaModel) -> None:
    marker = "<|im_end|>"
    special = model.special_token(marker)
    assert model.tokenize(marker, parse_special=True) == (special,)
    plain = model.tokenize(f"a {marker} b", parse_special=False)
    assert special not in plain
    assert all(model.piece(t) for t in plain)
    assert b"".join(map(model.piece, plain)) == f"a {marker} b".encode()


def test_special_tokens(model: LlamaModel) -> None:
    assert model.is_end(model.special_token("<|im_end|>"))
    assert not model.is_end(model.special_token("<|vision_start|>"))
    for text in ("<|no_such_marker|>", "", "two words"):
        with pytest.raises(ValueError, match="not one token of the model lm.Q8_0.gguf"):
            model.special_token(text)


def test_pieces(model: LlamaModel) -> None:
    assert model.piece(model.special_token("<|im_end|>")) == b""
    text = "Where did the red cup go? é€😀\n"
    for _ in range(2):  # the second time from memory
        ids = model.tokenize(text, parse_special=False)
        assert b"".join(map(model.piece, ids)).decode() == text


def test_a_piece_longer_than_most(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def long_piece(_vocab: Any, _token: int, buffer: Any, size: int, *_: Any) -> int:
        if size < 300:
            return -300
        buffer[:300] = b" " * 300
        return 300

    monkeypatch.setattr(llama, "llama_token_to_piece", long_piece)
    monkeypatch.setattr(model, "_pieces", {})
    assert model.piece(7) == b" " * 300


@pytest.mark.parametrize("text", ["", " ", "a" * 5000, "\x00", "lone \ud800 surrogate"])
def test_any_text_can_be_tokenized(model: LlamaModel, text: str) -> None:
    ids = model.tokenize(text, parse_special=False)
    expected = text.encode("utf-8", "replace")
    assert b"".join(map(model.piece, ids)) == expected


def test_no_bos_is_added(model: LlamaModel) -> None:
    assert len(model.tokenize("a", parse_special=True)) == 1


@pytest.mark.parametrize("repack", [True, False])
def test_whether_weights_are_rearranged_is_told_to_llama_cpp(
    repack: bool, profile: ModelProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def load(_path: bytes, params: llama.llama_model_params) -> None:
        told.append(params.use_extra_bufts)

    monkeypatch.setattr(llama, "llama_model_load_from_file", load)
    with pytest.raises(ModelLoadError):
        LlamaModel(profile.language.file, repack=repack)
    assert told == [repack]
