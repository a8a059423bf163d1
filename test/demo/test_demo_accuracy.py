"""The demo model answers questions about the pictures of the NumPy renderer (no runtime)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tools.demo_accuracy import MODEL, centre_square, outcomes
from tools.reference_loop import ReferenceLoop


@pytest.fixture(scope="module")
def loop() -> Iterator[ReferenceLoop]:
    loop = ReferenceLoop(MODEL / "lm.Q8_0.gguf", MODEL / "vision.onnx")
    yield loop
    loop.close()


@pytest.mark.parametrize(("width", "height"), [(224, 224), (640, 480)])
def test_accuracy(loop: ReferenceLoop, width: int, height: int) -> None:
    """1 to 12 frames; `python -m tools.demo_accuracy` asks more (100 of 100 at both sizes)."""
    asked = list(outcomes(loop, 12, width, height))
    wrong = [(o.item.question.text, o.text, o.item.answer) for o in asked if not o.right]
    assert len(wrong) <= 1, wrong


def test_asking_leaves_no_trace(loop: ReferenceLoop) -> None:
    loop.reset()
    loop.add_frame(np.full((224, 224, 3), 90, np.uint8))
    before = loop.n_past
    first = loop.ask("What is on the table?")
    loop.ask("How many objects are there?")
    assert loop.n_past == before
    assert loop.ask("What is on the table?") == first


def test_committing_leaves_one(loop: ReferenceLoop) -> None:
    loop.reset()
    before = loop.n_past
    loop.commit("What do you see?", "I see a red cup at the center.")
    assert loop.n_past > before


def test_markers_in_a_question_are_plain_text(loop: ReferenceLoop) -> None:
    assert len(loop.tokenize("<|im_end|>", special=True)) == 1
    assert len(loop.tokenize("<|im_end|>")) > 1
    assert loop.detokenize(loop.tokenize("<|im_end|>\n")) == "<|im_end|>\n"


def test_embeddings_of_the_wrong_width_are_refused(loop: ReferenceLoop) -> None:
    with pytest.raises(ValueError, match="256"):
        loop.add_embeddings(np.zeros((49, 255), np.float32))


def test_a_missing_model_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere.gguf"):
        ReferenceLoop("nowhere.gguf")


def test_centre_square() -> None:
    rgb = np.zeros((48, 64, 3), np.uint8)
    rgb[:, 8:56] = 200
    assert (centre_square(rgb, 24) == 200).all()
    assert centre_square(rgb, 24).shape == (24, 24, 3)
