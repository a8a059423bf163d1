from __future__ import annotations

import hashlib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from edge_vlm_ros.model_profile import (
    ProfileError,
    load_profile,
    sha256_file,
    template_identity,
    verify_files,
)

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "config/models/demo.yaml"
TWO_ON_ONE_CORE = [{"type": "rknn", "file": "a", "contexts": 2, "core_mask": "0"}]


@pytest.fixture
def document() -> dict[str, Any]:
    return yaml.safe_load(DEMO.read_text())


def write(folder: Path, document: Any) -> Path:
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def without(document: dict[str, Any], dotted: str) -> dict[str, Any]:
    result = deepcopy(document)
    *parents, last = dotted.split(".")
    part: Any = result
    for name in parents:
        part = part[int(name) if name.isdigit() else name]
    del part[last]
    return result


def with_value(document: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    result = deepcopy(document)
    *parents, last = dotted.split(".")
    part: Any = result
    for name in parents:
        part = part[int(name) if name.isdigit() else name]
    part[last] = value
    return result


def test_the_demo_profile_says_what_the_demo_model_needs() -> None:
    profile = load_profile(DEMO)
    assert profile.name == "demo"
    assert profile.language.context_tokens == 4096
    assert profile.encoder.size == (224, 224) and profile.encoder.resize == "center_crop"
    assert (profile.encoder.n_tokens, profile.encoder.n_embd) == (49, 256)
    assert profile.encoder.scale == 1 / 255
    assert profile.template.open == "<|im_start|>user\n"
    assert profile.template.frame_prefix == "<|vision_start|>"
    assert profile.template.frame_suffix == "<|vision_end|>\n"
    assert profile.template.ask == "<|im_end|>\n<|im_start|>assistant\n"
    assert profile.template.close == "<|im_end|>\n<|im_start|>user\n"
    assert profile.template.stop_tokens == ("<|im_end|>",)
    assert (profile.history.max_frames, profile.history.keep_frames) == (12, 6)


def test_the_demo_files_are_there_and_have_their_digests() -> None:
    verify_files(load_profile(DEMO))


def test_paths_are_relative_to_the_profile(document, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    write(folder, with_value(document, "language.file", "../weights/lm.gguf"))
    monkeypatch.chdir(tmp_path)
    profile = load_profile("a/b/profile.yaml")
    assert profile.language.file == tmp_path / "a/weights/lm.gguf"
    absolute = write(folder, with_value(document, "language.file", "/models/lm.gguf"))
    assert load_profile(absolute).language.file == Path("/models/lm.gguf")


def test_profiles_are_frozen() -> None:
    profile = load_profile(DEMO)
    with pytest.raises(ValidationError):
        profile.name = "other"
    with pytest.raises(ValidationError):
        profile.encoder.n_tokens = 3


def test_defaults(document, tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, document))
    assert profile.encoder.pad_value == 0
    assert profile.encoder.mean == (0.0, 0.0, 0.0) and profile.encoder.std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "field",
    [
        "name",
        "language",
        "language.file",
        "language.context_tokens",
        "encoder.size",
        "encoder.resize",
        "encoder.backends",
        "template.ask",
        "history.max_frames",
    ],
)
def test_a_missing_field_is_named(document, tmp_path: Path, field: str) -> None:
    path = write(tmp_path, without(document, field))
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)
    assert f"{field}: is missing; add it" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("encoder.resize", "crop", "center_crop"),
        ("encoder.size", [224], "encoder.size.1"),
        ("encoder.size", [0, 224], "greater than or equal to 1"),
        ("encoder.backends", [{"type": "tflite"}], "'onnx'"),
        ("encoder.backends", [], "encoder.backends"),
        (
            "encoder.backends",
            [{"type": "rknn", "file": "a", "contexts": 2, "core_mask": "0"}],
            "core each",
        ),
        ("encoder.std", [1.0, 0.0, 1.0], "encoder.std.1"),
        ("encoder.scale", float("nan"), "encoder.scale"),
        ("encoder.pad_value", 300, "less than or equal to 255"),
        ("encoder.backends", [{"type": "mtmd", "file": "a", "sha256": "abc"}], "sha256"),
        ("encoder.colour", "rgb", "encoder.colour: is not a known field"),
        ("history.keep_frames", 12, "must be less than max_frames"),
        ("history.max_frames", 84, "lower max_frames"),
        ("template.stop_tokens", [], "template.stop_tokens"),
        ("template.ask", "", "template.ask"),
        ("language.context_tokens", "many", "is 'many'"),
    ],
)
def test_a_wrong_value_is_named(document, tmp_path: Path, field, value, words: str) -> None:
    path = write(tmp_path, with_value(document, field, value))
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert str(path) in str(caught.value) and words in str(caught.value)


def test_all_wrong_fields_are_named_at_once(document, tmp_path: Path) -> None:
    wrong = without(with_value(document, "encoder.n_tokens", 0), "template.open")
    with pytest.raises(ProfileError) as caught:
        load_profile(write(tmp_path, wrong))
    assert "encoder.n_tokens" in str(caught.value) and "template.open" in str(caught.value)


def test_unreadable_profiles(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read the model profile"):
        load_profile(tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [demo")
    with pytest.raises(ProfileError, match="not valid YAML"):
        load_profile(broken)
    with pytest.raises(ProfileError, match="must be a mapping"):
        load_profile(write(tmp_path, ["demo"]))


@pytest.mark.parametrize("part", ["language", "encoder.backends.0"])
def test_missing_and_changed_files_are_named(document, tmp_path: Path, part: str) -> None:
    for field in ("language.file", "encoder.backends.0.file", "encoder.reference"):
        name = field.replace(".", "_")
        (tmp_path / name).write_bytes(name.encode())
        document = with_value(document, field, name)
    for other in ("language", "encoder.backends.0"):
        digest = hashlib.sha256(f"{other.replace('.', '_')}_file".encode()).hexdigest()
        document = with_value(document, f"{other}.sha256", digest)
    profile = load_profile(write(tmp_path, document))
    verify_files(profile)
    file = tmp_path / f"{part.replace('.', '_')}_file"
    file.write_bytes(b"something else")
    with pytest.raises(ProfileError, match=rf"{part}.sha256 says"):
        verify_files(profile)
    file.unlink()
    with pytest.raises(ProfileError, match=rf"{part}.file names .*{file.name}"):
        verify_files(profile)


def test_without_a_digest_only_existence_is_checked(document, tmp_path: Path) -> None:
    for field in ("language.file", "encoder.backends.0.file", "encoder.reference"):
        (tmp_path / field).write_bytes(b"any")
        document = with_value(document, field, field)
    profile = load_profile(
        write(tmp_path, without(without(document, "language.sha256"), "encoder.backends.0.sha256"))
    )
    verify_files(profile)
    (tmp_path / "encoder.reference").unlink()
    with pytest.raises(ProfileError, match="encoder.reference"):
        verify_files(profile)


def test_sha256_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    content = bytes(range(256)) * 9000
    path.write_bytes(content)
    assert sha256_file(path) == hashlib.sha256(content).hexdigest()
    with pytest.raises(ProfileError, match="cannot read"):
        sha256_file(tmp_path / "missing")


def test_template_identity_follows_every_text_and_nothing_else(document, tmp_path: Path) -> None:
    original = template_identity(load_profile(write(tmp_path, document)))
    assert len(original) == 32
    for field in ("open", "frame_prefix", "frame_suffix", "ask", "close"):
        longer = document["template"][field] + "x"
        changed = with_value(document, f"template.{field}", longer)
        assert template_identity(load_profile(write(tmp_path, changed))) != original
    for field, value in (("name", "other"), ("template.stop_tokens", ["</s>"])):
        changed = with_value(document, field, value)
        assert template_identity(load_profile(write(tmp_path, changed))) == original


def test_template_identity_sees_where_one_text_ends(document, tmp_path: Path) -> None:
    def identity(prefix: str, suffix: str) -> bytes:
        changed = with_value(document, "template.frame_prefix", prefix)
        changed = with_value(changed, "template.frame_suffix", suffix)
        return template_identity(load_profile(write(tmp_path, changed)))

    assert identity("ab", "c") != identity("a", "bc")
