"""Table-top scenes: which objects lie where in each frame, and what happened between the frames.

A scene is drawn from a `random.Random`. The order of the draws is part of the contract: held-out
items are stored as seeds, so a change of order would silently change their questions and answers.
"""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass, field, replace
from typing import Literal

TYPES = (
    "ball", "box", "cup", "bottle", "cone", "can", "bowl", "book", "plate", "ring", "banana",
    "apple",
)  # fmt: skip
COLORS: dict[str, tuple[float, float, float]] = {
    "red": (0.82, 0.10, 0.10),
    "green": (0.10, 0.58, 0.16),
    "blue": (0.12, 0.25, 0.85),
    "yellow": (0.93, 0.82, 0.10),
    "orange": (0.95, 0.48, 0.06),
    "purple": (0.48, 0.14, 0.66),
    "white": (0.95, 0.95, 0.95),
    "black": (0.07, 0.07, 0.08),
    "pink": (0.96, 0.52, 0.68),
    "brown": (0.42, 0.24, 0.10),
}
COLOR_NAMES = tuple(COLORS)

MAX_FRAMES = 12  # frames of one context; any span of so many holds at most one event per object
MAX_KINDS = 6  # different objects that ever appear in one scene
MAX_EVENTS = 4.5  # most events expected in MAX_FRAMES frames

Cell = tuple[int, int]  # (row, column): row 0 is the front, column 0 the left
EventKind = Literal["add", "move", "remove"]


@dataclass(frozen=True)
class World:
    """Limits of the scenes that are drawn. The model was trained with the defaults."""

    n_types: int = len(TYPES)
    n_colors: int = len(COLORS)
    max_objects: int = 5


@dataclass
class TableObject:
    """One object and its cell in every frame (None: not on the table)."""

    type: str
    color: str
    cells: list[Cell | None]
    offset: tuple[float, float] = (0.0, 0.0)  # within the cell: (right, back)
    size: float = 1.0
    variant: int = 0  # chooses the sprite

    @property
    def name(self) -> str:
        return f"{self.color} {self.type}"


@dataclass(frozen=True)
class Event:
    """`frame` is the first to show the result; `source` and `target` are None off the table."""

    kind: EventKind
    obj: int  # index into Scene.objects
    frame: int
    source: Cell | None
    target: Cell | None


@dataclass
class Scene:
    """What is on the table in frames 0 .. n_frames-1.

    Any MAX_FRAMES consecutive frames hold at most one event per object, so that "where did it go"
    has one answer. A longer scene is a stream: ask about it through `window`.
    """

    n_frames: int
    objects: list[TableObject] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # ascending by frame

    @classmethod
    def random(
        cls, rng: random.Random, n_frames: int | None = None, world: World | None = None
    ) -> Scene:
        """A scene of `n_frames` (default: 1 .. MAX_FRAMES) frames, drawn as for training."""
        n_frames = n_frames or rng.randint(1, MAX_FRAMES)
        builder = SceneBuilder(rng, n_frames, world or World())
        builder.extend(n_frames)
        for obj in builder.scene.objects:
            draw_appearance(obj, rng)
        return builder.scene

    def window(self, start: int, stop: int) -> Scene:
        """Frames start .. stop-1 as a scene of their own: what a viewer knows who saw only these.

        Raises ValueError when the span is empty or not inside the scene.
        """
        if not 0 <= start < stop <= self.n_frames:
            raise ValueError(
                f"window [{start}, {stop}) must be non-empty and inside [0, {self.n_frames})"
            )
        objects: list[TableObject] = []
        index: dict[int, int] = {}
        for i, obj in enumerate(self.objects):
            cells = obj.cells[start:stop]
            if any(cell is not None for cell in cells):
                index[i] = len(objects)
                objects.append(replace(obj, cells=cells))
        # An event at `start` itself is not seen: the viewer has no frame from before it.
        first = bisect.bisect_right(self.events, start, key=lambda e: e.frame)
        last = bisect.bisect_left(self.events, stop, key=lambda e: e.frame)
        events = [
            replace(e, obj=index[e.obj], frame=e.frame - start) for e in self.events[first:last]
        ]
        return Scene(stop - start, objects, events)

    def present(self, frame: int = -1) -> list[TableObject]:
        """The objects on the table in `frame` (default: the last one)."""
        return [o for o in self.objects if o.cells[frame] is not None]


def draw_appearance(obj: TableObject, rng: random.Random) -> None:
    """Draw the offset in the cell, the size and the sprite of one object."""
    obj.offset = (rng.uniform(-0.09, 0.09), rng.uniform(-0.10, 0.10))
    obj.size = rng.uniform(0.88, 1.12)
    obj.variant = rng.randrange(1 << 16)


class SceneBuilder:
    """Draws a scene frame by frame; `scene` grows with `extend`.

    event_rate: chance of an event per frame; drawn from the training distribution when None.
    min_objects: with fewer objects than this on the table, objects are added instead of removed
    (a long stream would otherwise drift to an almost empty table).
    """

    def __init__(
        self,
        rng: random.Random,
        n_frames: int,
        world: World,
        *,
        event_rate: float | None = None,
        min_objects: int = 0,
    ) -> None:
        self._rng = rng
        self._world = world
        self._min_objects = min_objects
        kinds = _draw_kinds(rng, world)
        weights = [1] + [4] * world.max_objects
        n_start = rng.choices(range(world.max_objects + 1), weights=weights)[0]
        self._free_cells: list[Cell] = [(r, c) for r in range(3) for c in range(3)]
        rng.shuffle(self._free_cells)
        self.scene = Scene(
            1, [TableObject(t, c, [self._free_cells.pop()]) for t, c in kinds[:n_start]]
        )
        self._spare = kinds[n_start:]
        self._last_event: dict[int, int] = {}  # object index -> frame
        span = min(n_frames, MAX_FRAMES) - 1
        self._event_rate = (
            rng.uniform(0, min(MAX_EVENTS, 0.8 * span)) / max(1, span)
            if event_rate is None
            else event_rate
        )

    def extend(self, n_frames: int) -> None:
        """Draw frames until the scene has `n_frames` of them."""
        for frame in range(self.scene.n_frames, n_frames):
            self._step(frame)

    def _step(self, frame: int) -> None:
        objects = self.scene.objects
        for obj in objects:
            obj.cells.append(obj.cells[-1])
        self.scene.n_frames = frame + 1
        if self._rng.random() > self._event_rate:
            return
        present = [i for i, o in enumerate(objects) if o.cells[-1] is not None]
        movable = [i for i in present if self._rested(i, frame)]
        kind = self._rng.choice(("move", "move", "remove", "remove", "add"))
        if kind == "remove" and len(present) < self._min_objects:
            kind = "add"
        # Where an addition is impossible nothing happens; the draws made so far stay used up.
        if kind == "add" and len(present) < self._world.max_objects:
            self._add(frame)
        elif kind == "remove" and movable:
            self._remove(self._rng.choice(movable), frame)
        elif kind == "move" and movable:
            self._move(self._rng.choice(movable), frame)

    def _rested(self, obj: int, frame: int) -> bool:
        """Whether an event of this object now would be the only one in any MAX_FRAMES frames."""
        return obj not in self._last_event or frame - self._last_event[obj] >= MAX_FRAMES - 1

    def _take_cell(self) -> Cell:
        return self._free_cells.pop(self._rng.randrange(len(self._free_cells)))

    def _record(self, event: Event) -> None:
        self._last_event[event.obj] = event.frame
        self.scene.events.append(event)

    def _add(self, frame: int) -> None:
        """Put a new object on the table or, when all kinds were used, one that was taken away."""
        objects = self.scene.objects
        back = [i for i, o in enumerate(objects) if o.cells[-1] is None and self._rested(i, frame)]
        if not self._spare and not back:
            return
        cell = self._take_cell()
        if self._spare:
            type_, color = self._spare.pop()
            history: list[Cell | None] = [None] * frame
            objects.append(TableObject(type_, color, [*history, cell]))
            obj = len(objects) - 1
        else:
            obj = self._rng.choice(back)
            objects[obj].cells[-1] = cell
        self._record(Event("add", obj, frame, None, cell))

    def _remove(self, obj: int, frame: int) -> None:
        cells = self.scene.objects[obj].cells
        source = cells[-1]
        assert source is not None
        cells[-1] = None
        self._free_cells.append(source)
        self._record(Event("remove", obj, frame, source, None))

    def _move(self, obj: int, frame: int) -> None:
        cells = self.scene.objects[obj].cells
        source = cells[-1]
        assert source is not None
        target = self._take_cell()
        cells[-1] = target
        self._free_cells.append(source)
        self._record(Event("move", obj, frame, source, target))


def _draw_kinds(rng: random.Random, world: World) -> list[tuple[str, str]]:
    """The (type, colour) pairs that a scene may show, all different."""
    pairs = [(t, c) for t in TYPES[: world.n_types] for c in COLOR_NAMES[: world.n_colors]]
    kinds = rng.sample(pairs, MAX_KINDS)
    if rng.random() < 0.25 and world.n_colors > 1:  # now and then two of a type, in two colours
        type_, color = kinds[0]
        others = [c for c in COLOR_NAMES[: world.n_colors] if c != color]
        kinds[1] = (type_, rng.choice(others))
        kinds = list(dict.fromkeys(kinds))
    return kinds
