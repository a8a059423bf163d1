"""Where an object of the table appears in the picture's unit square."""

from __future__ import annotations

from dataclasses import dataclass

from edge_vlm_ros.demo.world import Cell, Scene, TableObject


@dataclass(frozen=True)
class View:
    """The camera's position of a scene: a shift in the picture, and a zoom about its middle."""

    shift: tuple[float, float]
    zoom: float


@dataclass(frozen=True)
class Placement:
    """An object's foot (u right, v down) and its sprite's width, in units of the square."""

    obj: int  # index into Scene.objects
    u: float
    v: float
    size: float


def place_object(obj: TableObject, cell: Cell, view: View) -> tuple[float, float, float]:
    """(u, v, size) of an object that stands in `cell`: perspective, then the camera's view."""
    row, column = cell
    x = 0.17 + 0.33 * column + obj.offset[0]
    y = 0.10 + 0.40 * row + obj.offset[1]
    u = 0.5 + (x - 0.5) * (0.84 - 0.24 * y)
    v = 0.88 - 0.46 * y
    size = 0.27 * (1 - 0.38 * y) * obj.size
    shift_u, shift_v = view.shift
    zoom = view.zoom
    return 0.5 + (u - 0.5) * zoom + shift_u, 0.55 + (v - 0.55) * zoom + shift_v, size * zoom


def placements(scene: Scene, frame: int, view: View) -> list[Placement]:
    """The visible objects of a frame, from the back to the front."""
    visible = [
        (cell, i) for i, obj in enumerate(scene.objects) if (cell := obj.cells[frame]) is not None
    ]
    visible.sort(key=lambda entry: -entry[0][0] - scene.objects[entry[1]].offset[1])
    return [Placement(i, *place_object(scene.objects[i], cell, view)) for cell, i in visible]
