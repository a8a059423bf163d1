"""One painter per object type: it covers a canvas from the back to the front."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_vlm_ros.demo.sprite_canvas import Canvas

_RIM_LIGHT = (0.05, 0.05, 0.05)
_LABEL = (0.78, 0.78, 0.74)
_PAGES = (0.88, 0.86, 0.78)
_PAGES_SIDE = (0.80, 0.78, 0.70)


def _ball(c: Canvas) -> None:
    c.paint(c.ellipse(0, 0.1, 0.6, 0.6), c.ball_shading(0, 0.1, 0.6), c.highlight(0, 0.1, 0.6))


def _box(c: Canvas) -> None:
    w, d = c.shape.box
    edge = w - 0.15  # right edge of the front face
    side = [(edge, -0.2), (edge + d, -0.2 - d), (edge + d, 0.7 - d), (edge, 0.7)]
    top = [(-w, -0.2), (-w + d, -0.2 - d), (edge + d, -0.2 - d), (edge, -0.2)]
    c.paint(c.polygon(side), 0.55)
    c.paint(c.polygon(top), 1.12, _RIM_LIGHT)
    c.paint(c.rect(-w, edge, -0.2, 0.7), 0.85)


def _cup(c: Canvas) -> None:
    shading = c.upright_shading()
    handle = np.abs(np.hypot((c.x - 0.48) / 0.30, (c.y - 0.12) / 0.34) - 1) * 0.3 - 0.075
    c.paint(handle, 0.75)
    body = np.maximum(np.abs(c.x) - (0.44 - 0.10 * (c.y + 0.45) / 1.15), np.abs(c.y - 0.09) - 0.54)
    c.paint(body, shading)
    c.paint(c.ellipse(0, 0.63, 0.34, 0.08), shading)
    c.paint(c.ellipse(0, -0.45, 0.44, 0.13), 1.0, (0.08, 0.08, 0.08))
    c.paint(c.ellipse(0, -0.44, 0.37, 0.09), 0.30)


def _bottle(c: Canvas) -> None:
    shading = c.upright_shading()
    shoulders = [(-0.30, -0.08), (0.30, -0.08), (0.12, -0.42), (-0.12, -0.42)]
    c.paint(c.rect(-0.30, 0.30, -0.15, 0.7, 0.08), shading)
    c.paint(c.polygon(shoulders), shading)
    c.paint(c.rect(-0.11, 0.11, -0.74, -0.38), shading * 0.95)
    c.paint(c.rect(-0.14, 0.14, -0.88, -0.72, 0.03), 0.1, (0.18, 0.18, 0.2))
    c.paint(c.rect(-0.30, 0.30, 0.12, 0.44), 0.12, _LABEL)


def _cone(c: Canvas) -> None:
    shading = c.upright_shading()
    c.paint(c.ellipse(0, 0.58, 0.58, 0.14), shading * 0.9)
    c.paint(c.polygon([(-0.58, 0.56), (0.58, 0.56), (0, -0.78)]), shading)


def _can(c: Canvas) -> None:
    shading = c.upright_shading()
    c.paint(c.ellipse(0, 0.60, 0.40, 0.11), shading * 0.85)
    c.paint(c.rect(-0.40, 0.40, -0.42, 0.60), shading)
    c.paint(c.ellipse(0, -0.42, 0.40, 0.12), 0.25, (0.55, 0.55, 0.57))
    c.paint(c.ellipse(0, -0.42, 0.32, 0.085), 0.2, (0.42, 0.42, 0.44))


def _bowl(c: Canvas) -> None:
    body = np.maximum(c.ellipse(0, 0.06, 0.78, 0.66), 0.06 - c.y)
    c.paint(body, c.upright_shading())
    c.paint(c.rect(-0.26, 0.26, 0.62, 0.72, 0.03), 0.7)
    c.paint(c.ellipse(0, 0.06, 0.78, 0.19), 1.05, (0.06, 0.06, 0.06))
    c.paint(c.ellipse(0, 0.08, 0.68, 0.14), 0.42)


def _book(c: Canvas) -> None:
    c.paint(c.polygon([(-0.78, 0.42), (0.50, 0.42), (0.80, 0.08), (-0.48, 0.08)]), 1.05)
    side = [(0.50, 0.42), (0.80, 0.08), (0.80, 0.32), (0.50, 0.68)]
    c.paint(c.polygon(side), 0.05, _PAGES_SIDE)
    c.paint(c.rect(-0.78, 0.50, 0.42, 0.68), 0.05, _PAGES)
    c.paint(c.rect(-0.78, 0.50, 0.64, 0.70), 0.8)
    c.paint(c.rect(-0.78, 0.50, 0.40, 0.45), 0.8)


def _plate(c: Canvas) -> None:
    c.paint(c.ellipse(0, 0.52, 0.86, 0.27), 0.72)
    c.paint(c.ellipse(0, 0.49, 0.86, 0.26), 1.05, _RIM_LIGHT)
    c.paint(c.ellipse(0, 0.51, 0.56, 0.15), 0.78)


def _ring(c: Canvas) -> None:
    body = np.abs(np.hypot(c.x / 0.62, (c.y - 0.42) / 0.36) - 1) * 0.36 - 0.12
    c.paint(body, 0.72 + 0.45 * np.clip(-(body / 0.12), 0, 1))


def _banana(c: Canvas) -> None:
    body = np.maximum(c.ellipse(0, -0.30, 0.86, 0.98), -c.ellipse(0, -0.62, 0.92, 0.98))
    c.paint(body, 0.78 + 0.35 * np.clip(-body / 0.15, 0, 1))
    c.paint(c.ellipse(0.76, 0.06, 0.09, 0.07), 0.2, (0.2, 0.15, 0.05))
    c.paint(c.ellipse(-0.76, 0.06, 0.06, 0.06), 0.2, (0.15, 0.1, 0.05))


def _apple(c: Canvas) -> None:
    body = np.minimum(c.ellipse(-0.18, 0.14, 0.44, 0.56), c.ellipse(0.18, 0.14, 0.44, 0.56))
    c.paint(body, c.ball_shading(0, 0.14, 0.62), c.highlight(0, 0.12, 0.55, 0.3))
    stalk = np.abs(c.x - 0.06 - 0.12 * (-0.3 - c.y))
    stalk = stalk + np.maximum(np.abs(c.y + 0.48) - 0.2, 0) - 0.045
    c.paint(stalk, 0, (0.28, 0.18, 0.08))
    along = (c.x - 0.30) * 0.8 + (c.y + 0.58) * 0.5
    across = (c.y + 0.58) * 1.9 - (c.x - 0.3) * 0.6
    c.paint(np.hypot(along, across) - 0.2, 0, (0.12, 0.45, 0.12))  # leaf


PAINTERS: dict[str, Callable[[Canvas], None]] = {
    "ball": _ball,
    "box": _box,
    "cup": _cup,
    "bottle": _bottle,
    "cone": _cone,
    "can": _can,
    "bowl": _bowl,
    "book": _book,
    "plate": _plate,
    "ring": _ring,
    "banana": _banana,
    "apple": _apple,
}
