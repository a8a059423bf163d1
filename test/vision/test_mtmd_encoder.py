"""The mtmd encoder: what a frame consists of, and what it says about files it cannot use."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from edge_vlm_ros.model_profile import EncoderProfile, MtmdBackend
from edge_vlm_ros.vision import mtmd_encoder
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.mtmd_chunks import ImageChunk, Picture, TextChunk
from edge_vlm_ros.vision.mtmd_encoder import MtmdEncoder
from edge_vlm_ros.vision.mtmd_ggml import find_device
from edge_vlm_ros.vision.mtmd_language import LanguageModel
from edge_vlm_ros.vision.opening import open_encoder
from tools.make_random_vlm import ARCHITECTURES, RandomVlm
from tools.make_random_vlm.language import LanguageShape

Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """An InternVL: <img>, two tiles and an overview of 4 tokens each, </img>."""
    return ARCHITECTURES["internvl3"].write(tmp_path_factory.mktemp("internvl3"))


def profile_of(spec: RandomVlm, mmproj: Path, **changes: object) -> EncoderProfile:
    profile = EncoderProfile(
        backends=(MtmdBackend(type="mtmd", file=mmproj),),
        size=spec.size,
        resize="stretch",
        n_tokens=spec.n_tokens,
        n_embd=spec.language.n_embd,
    )
    return profile.model_copy(update=changes)


def open_mtmd(
    files: Files, name: str = "internvl3", *, device: str = "cpu", **changes: object
) -> MtmdEncoder:
    language, mmproj = files
    backend = MtmdBackend(type="mtmd", file=mmproj, device=device)
    return MtmdEncoder(profile_of(ARCHITECTURES[name], mmproj, **changes), backend, language)


def picture(seed: int = 0, size: tuple[int, int] = (32, 64)) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def token_embeddings(path: Path, tokens: list[int]) -> npt.NDArray[np.float32]:
    """Read with another library than the encoder's."""
    (tensor,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    return gguf.quants.dequantize(tensor.data[tokens], tensor.tensor_type)


# ------------------------------------------------------------------------------ encoding
def test_a_frame_is_images_and_the_tokens_around_them(files: Files) -> None:
    encoder = open_mtmd(files)
    begin, *images, end = encoder.chunks
    assert images == [ImageChunk(4, 4)] * 3
    assert isinstance(begin, TextChunk) and isinstance(end, TextChunk)
    assert [encoder._language.name_of(t) for t in (*begin.tokens, *end.tokens)] == [
        "<img>",
        "</img>",
    ]
    rows = encoder.encode(picture())
    assert rows.shape == (14, 64) and rows.dtype == np.float32
    around = token_embeddings(files[0], [*begin.tokens, *end.tokens])
    np.testing.assert_array_equal(rows[[0, -1]], around)
    with Picture(encoder._context, picture()) as same:  # type: ignore[arg-type]
        embeddings = np.concatenate([chunk.copy() for chunk in same.encode(64)])
    np.testing.assert_array_equal(rows[1:-1], embeddings)
    encoder.close()


def test_what_is_seen_where_matters(files: Files) -> None:
    encoder = open_mtmd(files)
    rgb = picture()
    changed = rgb.copy()
    changed[:, 32:] = 255 - changed[:, 32:]  # the second tile
    before, after = encoder.encode(rgb), encoder.encode(changed)
    different = np.flatnonzero(np.abs(before - after).max(axis=1) > 1e-3)
    assert list(different) == [*range(5, 9), *range(9, 13)]  # the tile and the overview
    np.testing.assert_array_equal(encoder.encode(rgb), before)
    encoder.close()


def test_two_encoders_on_two_threads_do_not_disturb_each_other(files: Files) -> None:
    encoders = [open_mtmd(files), open_mtmd(files)]
    expected = [encoders[0].encode(picture(seed)) for seed in range(2)]
    wrong: list[int] = []

    def encode(index: int) -> None:
        for _ in range(20):
            if not np.array_equal(encoders[index].encode(picture(index)), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=encode, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for encoder in encoders:
        encoder.close()


def test_positions_without_m_rope(files: Files) -> None:
    encoder = open_mtmd(files)
    np.testing.assert_array_equal(encoder.positions[:3], [np.arange(14)] * 3)
    assert encoder.n_positions == 14
    encoder.close()


def test_positions_of_m_rope(tmp_path: Path) -> None:
    """One text token, 3 x 4 image embeddings that take 4 positions, one text token."""
    language_file, mmproj = ARCHITECTURES["qwen2-vl"].write(tmp_path)
    language = LanguageModel(language_file)
    context = mtmd_encoder._open(mmproj, language, None, 1)
    with Picture(context, picture(size=(48, 64))) as cut:
        positions = cut.positions()
    y, x = np.divmod(np.arange(12), 4)
    np.testing.assert_array_equal(positions[0], [0, *[1] * 12, 5])
    np.testing.assert_array_equal(positions[1], [0, *(1 + y), 5])
    np.testing.assert_array_equal(positions[2], [0, *(1 + x), 5])
    np.testing.assert_array_equal(positions[3], np.zeros(14))
    mtmd_encoder.mtmd_cpp.mtmd_free(context)
    language.close()


def test_identity_follows_the_files_and_the_preprocessing(files: Files, tmp_path: Path) -> None:
    spec = ARCHITECTURES["internvl3"]
    other_language, other_mmproj = spec.write(tmp_path, seed=5)
    variants = [files, files, (other_language, files[1]), (files[0], other_mmproj)]
    identities = []
    for variant in variants:
        encoder = open_mtmd(variant)
        identities.append(encoder.identity)
        encoder.close()
    stretched = open_mtmd(files, resize="pad")
    identities.append(stretched.identity)
    stretched.close()
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4


def test_opens_as_a_backend(files: Files) -> None:
    profile = profile_of(ARCHITECTURES["internvl3"], files[1])
    opened = open_encoder(profile, threads=2, language=files[0])
    assert opened.self_test.passed and opened.refused == ()
    (encoder,) = opened.encoders
    assert encoder.backend == "llama.cpp mtmd, CPU, 2 threads"
    opened.close()
    with pytest.raises(EncoderError, match="needs the language model's file"):
        open_encoder(profile)


# ------------------------------------------------------------------------------- refusals
def refused(text: str) -> object:
    return pytest.raises(EncoderError, match=re.escape(text))


def test_numbers_that_differ_from_the_profile(files: Files) -> None:
    with refused(
        "makes 14 tokens of a frame of (32, 64) pixels (12 in 3 images, 2 around them), but the "
        "model profile says 12; set encoder.n_tokens to 14"
    ):
        open_mtmd(files, n_tokens=12)
    with refused("width 64, but the model profile says 96; correct encoder.n_embd"):
        open_mtmd(files, n_embd=96)
    with refused("makes 6 tokens of a frame of (32, 32) pixels"):
        open_mtmd(files, size=(32, 32))


def test_missing_damaged_and_exchanged_files(files: Files, tmp_path: Path) -> None:
    language, mmproj = files
    absent, cut = tmp_path / "absent.gguf", tmp_path / "cut.gguf"
    with refused(f"there is no file {absent}"):
        open_mtmd((language, absent))
    with refused(f"there is no language model {absent}"):
        open_mtmd((absent, mmproj))
    cut.write_bytes(b"GGUF" + bytes(3))
    with refused("is not a complete GGUF file"):
        open_mtmd((language, cut))
    cut.write_bytes(mmproj.read_bytes()[:-1000])
    with refused("cut.gguf"):
        open_mtmd((language, cut))
    cut.write_bytes(language.read_bytes()[:-1000])
    with refused("cut.gguf"):
        open_mtmd((cut, mmproj))
    with refused("is no projector file but a model of architecture 'qwen2'"):
        open_mtmd((language, language))
    with refused("is a projector file, but a language model is needed"):
        open_mtmd((mmproj, mmproj))


def test_projector_of_another_model(files: Files, tmp_path: Path) -> None:
    wide = replace(
        ARCHITECTURES["internvl3"], language=LanguageShape("qwen2", n_embd=128, n_head=4)
    )
    _, mmproj = wide.write(tmp_path / "wide")
    with refused("mismatch between text model (n_embd = 64) and mmproj (n_embd = 128)"):
        open_mtmd((files[0], mmproj))
    _, smolvlm = ARCHITECTURES["smolvlm2"].write(tmp_path / "smolvlm2")
    with refused("lacks tokens that this projector puts around images"):
        open_mtmd((files[0], smolvlm))


def test_a_size_that_the_library_refuses(tmp_path: Path) -> None:
    with refused("cannot prepare a frame: mtmd_tokenize: error: resize target 64x0"):
        open_mtmd(ARCHITECTURES["smolvlm2"].write(tmp_path), "smolvlm2", size=(1, 200))


def test_audio_only(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "audio.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.projector_type", "ultravox")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with refused("has no vision encoder (audio only)"):
        open_mtmd((files[0], path))


def test_unknown_projector_type(files: Files, tmp_path: Path) -> None:
    _, mmproj = replace(ARCHITECTURES["internvl3"], kind="of_tomorrow").write(tmp_path)
    with refused("unknown projector type: of_tomorrow"):
        open_mtmd((files[0], mmproj))


def test_tokens_that_are_not_computed_as_embeddings(tmp_path: Path) -> None:
    scaled = replace(ARCHITECTURES["internvl3"], language=LanguageShape("gemma3"))
    with refused("gemma3 computes tokens otherwise than embeddings"):
        open_mtmd(scaled.write(tmp_path))


def test_devices(files: Files) -> None:
    assert find_device("cpu") is None and find_device("CPU") is None
    with refused("there is no device 'cuda:7' for the encoder: llama.cpp has CPU"):
        open_mtmd(files, device="cuda:7")


def test_misuse(files: Files) -> None:
    encoder = open_mtmd(files)
    with refused("takes pixels of shape"):
        encoder.encode(picture(size=(64, 32)))
    with refused("takes uint8 pixels"):
        encoder.encode(picture().astype(np.float32))  # type: ignore[arg-type]
    encoder.close()
    encoder.close()
    with refused("has been closed"):
        encoder.encode(picture())
    with refused("at least 1 thread"):
        MtmdEncoder(encoder._profile, MtmdBackend(type="mtmd", file=files[1]), files[0], threads=0)
