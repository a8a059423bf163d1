"""Draws a question and its answer on the picture that was asked about."""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Rgb = NDArray[np.uint8]
"""[height, width, 3]."""

PIXELS = 160_000
"""Of a drawn picture, which has 480 kB then. Image viewers subscribe with best effort, and larger
pictures hardly ever arrive over that (measured: of 640 x 480, 4 of 20)."""

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_QUESTION_COLOUR = (255, 225, 130)
_ANSWER_COLOUR = (255, 255, 255)
_BAND_BRIGHTNESS = 0.3
_MAX_BAND = 0.5
"""Part of the picture's height that one band of text may cover."""

_MAX_CHARACTERS = 1000
"""More than half a picture holds; measuring text takes its time."""

_ASCII = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "×": "x", "ß": "ss"}
)


@dataclass(frozen=True)
class _Style:
    """Sizes of the text in pixels, from the picture's width."""

    scale: float
    thickness: int
    line_height: int
    margin: int

    @staticmethod
    def of(width: int) -> _Style:
        scale = width / 900 if width > 400 else 400 / 900
        return _Style(scale, max(1, round(1.6 * scale)), round(34 * scale), round(14 * scale))

    def width(self, text: str) -> int:
        return int(cv2.getTextSize(text, _FONT, self.scale, self.thickness)[0][0])


def annotate(rgb: Rgb, question: str, answer: str) -> Rgb:
    """A copy of the picture with the question above and the answer below, each on a dark band.

    It is scaled to 160 000 pixels, e.g. 462 x 346. What is too long for half the height ends in
    "...". OpenCV's fonts have ASCII only: other letters lose their accents or become "?".
    """
    picture = _scaled(rgb)
    height, width, _ = picture.shape
    style = _Style.of(width)
    most = max(1, int(_MAX_BAND * height - 2 * style.margin) // style.line_height)
    for text, colour, above in (
        (question, _QUESTION_COLOUR, True),
        (answer, _ANSWER_COLOUR, False),
    ):
        lines = _shortened(
            wrap(drawable(text)[:_MAX_CHARACTERS], width - 2 * style.margin, style), most
        )
        _draw_band(picture, lines, colour, style, above)
    return picture


def drawable(text: str) -> str:
    """The text in the letters that can be drawn; white space becomes single blanks."""
    plain = unicodedata.normalize("NFKD", text.translate(_ASCII))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return " ".join("".join(c if c.isascii() else "?" for c in plain).split())


def wrap(text: str, width: int, style: _Style) -> list[str]:
    """Lines of words that are at most ``width`` pixels wide; longer words are cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}".lstrip()
        if style.width(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while style.width(word) > width and len(word) > 1:
            lengths = range(1, len(word))
            fitting = max(1, bisect_right(lengths, width, key=lambda n: style.width(word[:n])))
            lines.append(word[:fitting])
            word = word[fitting:]
        line = word
    return [*lines, line] if line else lines


def _shortened(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    return [*lines[: most - 1], f"{last[:-3]}..."]


def _scaled(rgb: Rgb) -> Rgb:
    """A copy of a width that is fit to be drawn on."""
    height, width, _ = rgb.shape
    factor = math.sqrt(PIXELS / (height * width))
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    how = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(rgb, size, interpolation=how), dtype=np.uint8)


def _draw_band(
    picture: Rgb, lines: list[str], colour: tuple[int, int, int], style: _Style, above: bool
) -> None:
    if not lines:
        return
    height = picture.shape[0]
    band = min(len(lines) * style.line_height + 2 * style.margin, height)
    top = 0 if above else height - band
    rows = picture[top : top + band]
    rows[:] = (rows * _BAND_BRIGHTNESS).astype(np.uint8)
    for number, line in enumerate(lines, 1):
        baseline = top + style.margin + number * style.line_height - style.line_height // 3
        cv2.putText(
            picture,
            line,
            (style.margin, baseline),
            _FONT,
            style.scale,
            colour,
            style.thickness,
            cv2.LINE_AA,
        )
