"""Questions and answers on pictures."""

from __future__ import annotations

import numpy as np
import pytest

from edge_vlm_ros.ros.annotation import (
    _Style,
    annotate,
    drawable,
    wrap,
)

GREY = 128


def plain(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), GREY, dtype=np.uint8)


def bands(picture: np.ndarray) -> tuple[int, int, int]:
    """Rows of the band above, of the untouched middle, and of the band below."""
    untouched = [bool((row == GREY).all()) for row in picture]
    above = untouched.index(True)
    below = untouched[::-1].index(True)
    assert all(untouched[above : len(untouched) - below]), "text outside the bands"
    return above, len(untouched) - above - below, below


@pytest.mark.parametrize(
    ("height", "width", "drawn"),
    [
        (480, 640, (346, 462)),
        (112, 112, (400, 400)),
        (1080, 1920, (300, 533)),
        (640, 480, (462, 346)),
    ],
)
def test_pictures_have_a_size_that_arrives_and_can_be_read(
    height: int, width: int, drawn: tuple[int, int]
) -> None:
    picture = annotate(plain(height, width), "Where is the cup?", "Left.")
    assert picture.shape == (*drawn, 3) and picture.dtype == np.uint8
    assert picture.flags.c_contiguous


def test_question_above_answer_below_and_the_frame_stays() -> None:
    frame = plain(480, 640)
    picture = annotate(frame, "Where is the cup?", "It is on the left of the plate.")
    above, middle, below = bands(picture)
    assert 0 < above < 80 and above == below and middle > 180
    top, bottom = picture[:above], picture[-below:]
    # Dark bands with bright letters; the question's are yellowish, the answer's white.
    assert top.mean() < 80 and bottom.mean() < 80
    assert top.reshape(-1, 3).max(axis=0)[2] < 140 < top.reshape(-1, 3).max(axis=0)[0]
    assert (bottom.reshape(-1, 3).max(axis=0) > 240).all()
    assert (frame == GREY).all(), "the frame belongs to others too"
    assert (annotate(frame, "", "") == GREY).all()


def test_an_answer_takes_more_lines_and_at_most_half_the_height() -> None:
    frame = plain(480, 640)
    *_, one = bands(annotate(frame, "Q", "short"))
    *_, three = bands(annotate(frame, "Q", "several words that are wrapped " * 4))
    *_, full = bands(annotate(frame, "Q", "far too many words to be shown " * 40))
    assert one < three < full <= 346 / 2
    for long in ("w" * 5000, "many words " * 500):
        annotate(plain(48, 64), long, long)


def test_lines_are_as_wide_as_there_is_room() -> None:
    style = _Style.of(640)
    text = "the red cup is to the left of the blue plate, incomprehensibilities included"
    lines = wrap(text, 200, style)
    assert len(lines) > 2 and all(style.width(line) <= 200 for line in lines)
    assert " ".join(lines) == text
    cut = wrap("x" * 100, 200, style)
    assert "".join(cut) == "x" * 100 and all(style.width(line) <= 200 for line in cut)
    assert wrap("", 200, style) == [] and wrap("abc", 1, style) == ["a", "b", "c"]


def test_what_cannot_be_drawn_is_replaced() -> None:
    assert drawable("“Café” – it’s\n 3 × 4… straße") == '"Cafe" - it\'s 3 x 4... strasse'
    assert drawable("杯子 left") == "?? left"
