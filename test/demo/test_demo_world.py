"""Scenes, their windows, and the rule about events."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vlm_ros.demo.world import MAX_FRAMES, Scene, SceneBuilder, World

seeds = st.integers(0, 10_000)


def check_consistent(scene: Scene) -> None:
    """The events are exactly the changes between frames, and no cell is used twice."""
    changes = []
    for frame in range(scene.n_frames):
        cells = [o.cells[frame] for o in scene.objects if o.cells[frame] is not None]
        assert len(cells) == len(set(cells)) <= 5
        if frame:
            changes += [
                (i, frame, o.cells[frame - 1], o.cells[frame])
                for i, o in enumerate(scene.objects)
                if o.cells[frame - 1] != o.cells[frame]
            ]
    assert changes == [(e.obj, e.frame, e.source, e.target) for e in scene.events]
    kinds = {(True, False): "add", (False, False): "move", (False, True): "remove"}
    for event in scene.events:
        assert event.kind == kinds[event.source is None, event.target is None]
    assert len({o.name for o in scene.objects}) == len(scene.objects)


@given(seed=seeds, n_frames=st.integers(1, 60))
def test_events_are_the_changes(seed: int, n_frames: int) -> None:
    scene = Scene.random(random.Random(seed), n_frames)
    assert scene.n_frames == n_frames
    assert all(len(o.cells) == n_frames for o in scene.objects)
    check_consistent(scene)


@given(seed=seeds, start=st.integers(0, 80), length=st.integers(1, MAX_FRAMES))
def test_window_is_what_its_viewer_knows(seed: int, start: int, length: int) -> None:
    scene = Scene.random(random.Random(seed), 100)
    window = scene.window(start, start + length)
    assert window.n_frames == length
    check_consistent(window)
    assert len({e.obj for e in window.events}) == len(window.events)  # one event per object
    for frame in range(length):
        seen = {o.name: o.cells[frame] for o in window.present(frame)}
        assert seen == {o.name: o.cells[start + frame] for o in scene.present(start + frame)}
    assert all(any(o.cells) for o in window.objects)  # nothing that the viewer never saw


@given(seed=seeds, a=st.integers(0, 20), b=st.integers(1, 20), c=st.integers(1, 10))
def test_window_of_a_window(seed: int, a: int, b: int, c: int) -> None:
    scene = Scene.random(random.Random(seed), 60)
    outer = scene.window(a, a + b + c)
    assert outer.window(b, b + c) == scene.window(a + b, a + b + c)


def test_whole_window_is_the_scene() -> None:
    scene = Scene.random(random.Random(4), 12)
    assert scene.window(0, 12) == scene


@pytest.mark.parametrize("span", [(0, 0), (-1, 2), (3, 2), (0, 6)])
def test_window_outside_the_scene_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="window"):
        Scene.random(random.Random(1), 5).window(*span)


@given(seed=seeds, chunks=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_growing_in_parts_gives_the_same_scene(seed: int, chunks: list[int]) -> None:
    def builder() -> SceneBuilder:
        return SceneBuilder(random.Random(seed), MAX_FRAMES, World(), event_rate=0.4, min_objects=3)

    parts, whole = builder(), builder()
    total = 1
    for chunk in chunks:
        total += chunk
        parts.extend(total)
    whole.extend(total)
    assert parts.scene == whole.scene


def test_kinds_of_events_all_occur() -> None:
    scene = Scene.random(random.Random(2), 400)
    assert {e.kind for e in scene.events} == {"add", "move", "remove"}
