"""The NumPy renderer: agreement with the training renderer, determinism, wide pictures."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from edge_vlm_ros.demo.geometry import View
from edge_vlm_ros.demo.look import FrameLook, Look, Sensor
from edge_vlm_ros.demo.render import SceneRenderer, expose
from edge_vlm_ros.demo.sprites import NUM_VARIANTS, sprite
from edge_vlm_ros.demo.world import TYPES, Scene, TableObject

REFERENCE = np.load(Path(__file__).parent / "data" / "render_reference.npz")
TOLERANCE = 0.02 + 0.5  # grey levels of 255; half of one is the rounding of the stored picture


def triple(values: npt.NDArray[np.float64]) -> Any:
    return tuple(float(x) for x in values)


def reference_look(seed: int) -> Look:
    field = {name: REFERENCE[f"{seed}_{name}"] for name in (
        "view", "horizon", "table_rgb", "wall_rgb", "object_tints", "coarse", "grain", "wall",
        "grain_strength",
    )}  # fmt: skip
    dx, dy, zoom = triple(field["view"])
    return Look(
        view=View((dx, dy), zoom),
        horizon=float(field["horizon"]),
        table_rgb=triple(field["table_rgb"]),
        wall_rgb=triple(field["wall_rgb"]),
        object_tints=field["object_tints"],
        coarse=field["coarse"],
        grain=field["grain"],
        wall=field["wall"],
        grain_strength=float(field["grain_strength"]),
        sensor=Sensor(1.0, (1.0, 1.0, 1.0), 1.0, 0.0),
    )


@pytest.mark.parametrize("seed", REFERENCE["scene_seeds"].tolist())
def test_agrees_with_the_training_renderer(seed: int) -> None:
    n_frames = int(REFERENCE["n_frames"])
    scene = Scene.random(random.Random(seed), n_frames)
    assert scene.present(), "the reference scenes show something"
    renderer = SceneRenderer(scene, seed, look=reference_look(seed))
    du, dv = (float(x) for x in REFERENCE[f"{seed}_jitter"])
    drawn = renderer.scenery(n_frames - 1, FrameLook((du, dv), 1.0, (0.0, 0.0)))
    expected = REFERENCE[f"{seed}_last_frame"].astype(np.float32)
    assert np.abs(np.clip(drawn, 0, 1) * 255 - expected).max() <= TOLERANCE


def test_sensor_formula() -> None:
    rng = np.random.default_rng(3)
    scenery = rng.uniform(0, 1.2, (3, 20, 30)).astype(np.float32)
    noise = rng.standard_normal((3, 20, 30), np.float32)
    balance = np.array([0.95, 1.0, 1.05])
    exposed = np.clip(scenery * (1.1 * 0.98 * balance)[:, None, None], 1e-4, 1) ** 0.9
    expected = np.clip(exposed + 0.02 * noise, 0, 1).transpose(1, 2, 0) * 255
    picture = expose(scenery, Sensor(1.1, triple(balance), 0.9, 0.02), 0.98, noise)
    assert picture.shape == (20, 30, 3) and picture.dtype == np.uint8
    assert np.abs(picture - expected).max() <= 0.51


def scene_of(seed: int, n_frames: int = 12) -> Scene:
    return Scene.random(random.Random(seed), n_frames)


def test_any_frame_can_be_drawn_alone() -> None:
    in_order = SceneRenderer(scene_of(5), 8)
    frames = [in_order.frame(k) for k in range(12)]
    alone = SceneRenderer(scene_of(5), 8)
    for k in (7, 3, 11, 0):
        np.testing.assert_array_equal(alone.frame(k), frames[k])
    assert frames[0].dtype == np.uint8 and frames[0].shape == (224, 224, 3)
    quiet = next(k for k in range(1, 12) if k not in {e.frame for e in scene_of(5).events})
    assert (frames[quiet - 1] != frames[quiet]).any(), "every frame has its own jitter and noise"


def test_other_seed_other_look() -> None:
    scene = scene_of(5)
    assert (SceneRenderer(scene, 8).frame(0) != SceneRenderer(scene, 9).frame(0)).mean() > 0.5


@pytest.mark.parametrize("seed", range(4))
def test_centre_of_a_wide_picture_is_the_square_one(seed: int) -> None:
    scene = scene_of(40 + seed)
    frame_look = FrameLook((0.0, 0.0), 1.0, (0.0, 0.0))
    square = SceneRenderer(scene, seed).scenery(11, frame_look)
    wide = SceneRenderer(scene, seed, width=640, height=480).scenery(11, frame_look)
    assert wide.shape == (3, 480, 640)
    crop = np.ascontiguousarray(wide[:, :, 80:560].transpose(1, 2, 0))
    small = cv2.resize(crop, (224, 224), interpolation=cv2.INTER_AREA).transpose(2, 0, 1)
    difference = np.abs(small - square) * 255
    # Sprite edges are sharper in the large picture, and the grain goes on beyond the square.
    assert difference.mean() < 1.0
    assert (difference > 24).mean() < 0.01


@pytest.mark.parametrize(("width", "height"), [(224, 224), (640, 480)])
def test_objects_stand_in_their_cells(width: int, height: int) -> None:
    frame_look = FrameLook((0.0, 0.0), 1.0, (0.0, 0.0))
    empty = SceneRenderer(Scene(1), 3, width=width, height=height).scenery(0, frame_look)
    centres = {}
    for row in range(3):
        for column in range(3):
            scene = Scene(1, [TableObject("box", "red", [(row, column)])])
            drawn = SceneRenderer(scene, 3, width=width, height=height).scenery(0, frame_look)
            y, x = np.nonzero(np.abs(drawn - empty).max(axis=0) > 0.1)
            assert 0.002 < len(y) / height**2 < 0.05
            centres[row, column] = ((x.mean() - (width - height) / 2) / height, y.mean() / height)
    for row in range(3):
        left, middle, right = (centres[row, column][0] for column in range(3))
        assert 0.1 < left < 0.4 < middle < 0.6 < right < 0.9
    for column in range(3):
        front, middle, back = (centres[row, column][1] for row in range(3))
        assert back + 0.1 < middle < front - 0.1


def test_wide_picture_has_table_on_both_sides() -> None:
    empty = Scene(1)
    wide = SceneRenderer(empty, 3, width=640, height=480).scenery(
        0, FrameLook((0.0, 0.0), 1.0, (0.0, 0.0))
    )
    middle = wide[:, :, 80:560].mean(axis=2)
    for side in (wide[:, :, :80], wide[:, :, 560:]):
        assert np.abs(side.mean(axis=2) - middle).max() < 0.25


def test_sprites_repeat_and_differ() -> None:
    assert sprite("cup", 3) is sprite("cup", 3)
    np.testing.assert_array_equal(sprite("cup", 3), sprite("cup", 3 + NUM_VARIANTS))
    pictures = {sprite(type_, v).tobytes() for type_ in TYPES for v in (0, 1)}
    assert len(pictures) == 2 * len(TYPES)
    with pytest.raises(ValueError, match="read-only"):
        sprite("cup", 3)[0, 0, 0] = 1


@pytest.mark.parametrize(("width", "height"), [(0, 0), (200, 201), (10, -1)])
def test_impossible_sizes_are_refused(width: int, height: int) -> None:
    with pytest.raises(ValueError, match="height <= width"):
        SceneRenderer(scene_of(1), 0, width=width, height=height)


def test_frames_outside_the_scene_are_refused() -> None:
    renderer = SceneRenderer(scene_of(1, 3), 0)
    for index in (-1, 3):
        with pytest.raises(IndexError, match="not one of the scene's 3"):
            renderer.frame(index)
