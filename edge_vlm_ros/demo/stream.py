"""An endless table: what a demo camera films, and the truth about what it filmed."""

from __future__ import annotations

import random

from edge_vlm_ros.demo.questions import Question, ask_about
from edge_vlm_ros.demo.render import Picture, SceneRenderer
from edge_vlm_ros.demo.world import (
    MAX_EVENTS,
    MAX_FRAMES,
    MAX_KINDS,
    Scene,
    SceneBuilder,
    World,
    draw_appearance,
)

_GROW_BY = 1024  # frames drawn at once
MAX_EVENT_RATE = MAX_EVENTS / (MAX_FRAMES - 1)


class TableStream:
    """Frames 0, 1, 2, ... without end; equal arguments give equal frames and truths.

    Any frame can be drawn at any time (the scene is drawn up to it and kept: about 60 bytes a
    frame). Any MAX_FRAMES consecutive frames hold at most one event per object, as in training.
    Use it from one thread at a time.

    seed: >= 0. width >= height: size of the pictures, in pixels.
    event_rate: chance that something happens at a frame, 0 .. MAX_EVENT_RATE (the trained range).
    min_objects: the table is refilled when it holds fewer, 0 .. 5.
    Raises ValueError for arguments outside these ranges.
    """

    def __init__(
        self,
        seed: int,
        *,
        width: int = 640,
        height: int = 480,
        event_rate: float = 0.3,
        min_objects: int = 3,
    ) -> None:
        if not 0 <= event_rate <= MAX_EVENT_RATE:
            raise ValueError(f"event_rate must be 0 .. {MAX_EVENT_RATE:.3f}, got {event_rate}")
        world = World()
        if not 0 <= min_objects <= world.max_objects:
            raise ValueError(f"min_objects must be 0 .. {world.max_objects}, got {min_objects}")
        self._builder = SceneBuilder(
            random.Random(f"table {seed}"),
            MAX_FRAMES,
            world,
            event_rate=event_rate,
            min_objects=min_objects,
        )
        # Objects appear while the stream grows, so their appearance has its own random numbers.
        rng = random.Random(f"appearance {seed}")
        self._appearances = [rng.getrandbits(64) for _ in range(MAX_KINDS)]
        self._n_dressed = 0
        self._grow(1)
        self._renderer = SceneRenderer(self._builder.scene, seed, width=width, height=height)

    def frame(self, index: int) -> Picture:
        """uint8 [height, width, 3] RGB of frame `index`. Raises IndexError when it is negative."""
        self._grow(index + 1)
        return self._renderer.frame(index)

    def window(self, start: int, stop: int) -> Scene:
        """What a viewer knows who saw exactly the frames start .. stop-1.

        Raises ValueError unless 0 <= start < stop.
        """
        self._grow(stop)
        return self._builder.scene.window(start, stop)

    def ask_about(
        self, start: int, stop: int, rng: random.Random, kind: str | None = None
    ) -> Question | None:
        """A question that a viewer of the frames start .. stop-1 can be asked; see ask_about."""
        return ask_about(self.window(start, stop), rng, kind)

    def truth(self, question: Question, start: int, stop: int) -> str | None:
        """The true answer for a viewer of the frames start .. stop-1; see Question.answer."""
        return question.answer(self.window(start, stop))

    def _grow(self, n_frames: int) -> None:
        scene = self._builder.scene
        if n_frames > scene.n_frames:
            self._builder.extend(max(n_frames, scene.n_frames + _GROW_BY))
        for i in range(self._n_dressed, len(scene.objects)):
            draw_appearance(scene.objects[i], random.Random(self._appearances[i]))
        self._n_dressed = len(scene.objects)
