"""The reference of an encoder's self-test can be made for every type of backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers import PROFILE, ROOT

from tools.make_encoder_reference import main
from tools.make_random_vlm import ARCHITECTURES


def test_of_a_projector_file(tmp_path: Path) -> None:
    spec = ARCHITECTURES["internvl3"]
    language, projector = spec.write(tmp_path)
    document = yaml.safe_load(PROFILE.read_text())
    document["language"] = {"file": str(language), "context_tokens": 4096}
    document["encoder"] = {
        "backends": [{"type": "mtmd", "file": str(projector)}],
        "size": list(spec.size),
        "resize": "stretch",
        "n_tokens": spec.n_tokens,
        "n_embd": spec.language.n_embd,
    }
    profile, out = tmp_path / "profile.yaml", tmp_path / "reference.npz"
    profile.write_text(yaml.safe_dump(document))
    tool = [sys.executable, "-m", "tools.make_encoder_reference"]
    arguments = [str(profile), str(ROOT / "docs" / "demo.png"), "--out", str(out)]
    ended = subprocess.run(
        [*tool, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert "encoder self-test passed" in ended.stdout
    assert "llama_model_loader" not in ended.stderr, "llama.cpp's log goes to logging"
    assert np.load(out)["embeddings"].shape == (spec.n_tokens, spec.language.n_embd)


PICTURE = str(ROOT / "docs" / "demo.png")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["smolvlm2-500m", PICTURE], "cannot read the model profile smolvlm2-500m"),
        ([str(PROFILE), str(PROFILE)], "is not a picture"),
        ([str(PROFILE), PICTURE, "--crop", "0", "0", "0", "9"], "no part of a picture"),
        ([str(PROFILE), PICTURE, "--crop", "-1", "0", "9", "9"], "no part of a picture"),
        ([str(PROFILE), PICTURE, "--crop", "0", "0", "9", "99999"], "not within the picture"),
        ([str(PROFILE), PICTURE, "--out", "reference.foo"], "no name of an .npz file"),
        ([str(PROFILE), PICTURE, "--out", "nowhere/reference.npz"], "no folder nowhere"),
    ],
)
def test_mistakes_are_explained_and_nothing_is_written(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--out" not in arguments:
        arguments = [*arguments, "--out", str(tmp_path / "reference.npz")]
    assert main(arguments) == 1
    assert words in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
