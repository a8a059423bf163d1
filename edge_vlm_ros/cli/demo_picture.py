"""The picture that the demonstration leaves: frames with questions and answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from edge_vlm_ros.demo.render import Picture

_THUMBNAIL = (160, 120)
_THUMBNAILS = 4
_GAP = 8
_TEXT_WIDTH = 620
_LINE = 19
_INK, _GREY, _GREEN, _RED = "#16202a", "#6b7785", "#137333", "#b3261e"


@dataclass(frozen=True)
class Scored:
    """One question of the demonstration with its answer and the truth.

    ``pictures`` are all frames the answer saw, uint8 [height, width, 3] RGB, oldest first.
    """

    stream: str
    question: str
    answer: str
    truth: str
    pictures: list[Picture]
    frames_seen: str
    where: str
    ttft_ms: float
    decode_tok_s: float

    @property
    def right(self) -> bool:
        return self.answer == self.truth


def save_picture(path: Path, answers: list[Scored]) -> None:
    """One row per answer: some of the frames it saw, the question, the answer and the figures."""
    row = _THUMBNAIL[1] + 2 * _GAP
    width = _THUMBNAILS * (_THUMBNAIL[0] + _GAP) + _GAP + _TEXT_WIDTH
    sheet = Image.new("RGB", (width, row * len(answers) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for i, answer in enumerate(answers):
        top = i * row + _GAP
        _draw_frames(sheet, answer, top)
        _draw_text(draw, answer, _THUMBNAILS * (_THUMBNAIL[0] + _GAP) + 2 * _GAP, top)
        draw.line((_GAP, top + row - _GAP, width - _GAP, top + row - _GAP), fill="#dde3ea")
    sheet.save(path)


def _draw_frames(sheet: Image.Image, answer: Scored, top: int) -> None:
    """Evenly chosen frames, always with the oldest and the newest."""
    n = min(_THUMBNAILS, len(answer.pictures))
    chosen = np.linspace(0, len(answer.pictures) - 1, n).round().astype(int)
    for column, index in enumerate(chosen):
        thumbnail = Image.fromarray(_fit(answer.pictures[index]))
        x = _GAP + column * (_THUMBNAIL[0] + _GAP) + (_THUMBNAIL[0] - thumbnail.width) // 2
        sheet.paste(thumbnail, (x, top))


def _fit(picture: Picture) -> Picture:
    height, width = picture.shape[:2]
    scale = min(_THUMBNAIL[0] / width, _THUMBNAIL[1] / height)
    size = (round(width * scale), round(height * scale))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)


def _draw_text(draw: ImageDraw.ImageDraw, answer: Scored, x: int, top: int) -> None:
    large, small = ImageFont.load_default(17), ImageFont.load_default(13)
    figures = f"first token {answer.ttft_ms:.0f} ms, {answer.decode_tok_s:.0f} tokens/s"
    heading = f"{answer.stream}, {answer.frames_seen}; {figures}, {answer.where}"
    draw.text((x, top), heading, fill=_GREY, font=small)
    draw.text((x, top + 18), answer.question, fill=_INK, font=large)
    y = top + 42
    for line in _wrap(draw, answer.answer, large):
        draw.text((x, y), line, fill=_GREEN if answer.right else _RED, font=large)
        y += _LINE
    if not answer.right:
        draw.text((x, y), f"the truth: {answer.truth}", fill=_GREY, font=small)


def _wrap(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font=font) <= _TEXT_WIDTH - 3 * _GAP:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
