"""Held-out items through ROS: camera topics in, answers out, against the truth and a plain loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from edge_vlm_ros.srv import ResetStream
from harness import PATIENCE_S, World, image, wait_for, world
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from edge_vlm_ros.demo.questions import Item, make_item
from edge_vlm_ros.demo.render import SceneRenderer
from tools.demo_accuracy import MODEL, centre_square
from tools.reference_loop import ReferenceLoop, load_heldout

RATE_HZ = 30.0
SIZES = ((224, 224), (640, 480))
N_ITEMS = 100


@dataclass(frozen=True)
class Outcome:
    item: Item
    text: str
    token_ids: list[int]
    reference_ids: list[int]
    frames: int


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[Outcome]]:
    """All items, alternating between the two picture sizes."""
    loop = ReferenceLoop(MODEL / "lm.Q8_0.gguf", MODEL / "vision.onnx")
    parameters = {
        "table__qos__reliability": "reliable",
        "table__qos__depth": 50,
        "table__max_pending_frames": 50,
    }
    with world(**parameters) as started:
        assert started.node.change("configure") and started.node.change("activate")
        assert started.client.action.wait_for_server(PATIENCE_S)
        camera = started.client.create_publisher(Image, "/table/image_raw", QoSProfile(depth=50))
        wait_for(lambda: camera.get_subscription_count() > 0, "the camera's subscription")
        entries = load_heldout(MODEL / "heldout.json")[:N_ITEMS]
        yield [
            _run_item(started, camera, loop, entry, SIZES[k % 2]) for k, entry in enumerate(entries)
        ]
    loop.close()


def _run_item(
    robot: World,
    camera: Publisher,
    loop: ReferenceLoop,
    entry: dict[str, int],
    size: tuple[int, int],
) -> Outcome:
    item = make_item(entry["seed"], entry["n_frames"], entry["n_commit"])
    renderer = SceneRenderer(item.scene, entry["seed"], width=size[0], height=size[1])
    frames = [renderer.frame(k) for k in range(item.scene.n_frames)]
    assert robot.client.call(ResetStream, "reset_stream", stream="table").success
    loop.reset()
    start = time.monotonic()
    for k, frame in enumerate(frames):
        time.sleep(max(0.0, start + k / RATE_HZ - time.monotonic()))
        _publish(robot, camera, frame, stamp_ns=k + 1)
        loop.add_frame(centre_square(frame, 224))
        for turn in (t for t in item.commits if t.after_frame == k):
            _, result = robot.client.ask(turn.question, stream="table", commit=True).wait_end()
            loop.commit(turn.question, result.text)
    ended, result = robot.client.ask(item.question.text, stream="table").wait_end()
    assert ended == "succeeded"
    reference_ids, _ = loop.ask(item.question.text)
    return Outcome(item, result.text, list(result.token_ids), reference_ids, result.context.frames)


def _publish(robot: World, camera: Publisher, frame: np.ndarray, stamp_ns: int) -> None:
    """Publish, and wait until the frame is registered: topics and goals are not ordered."""
    runtime = robot.node.runtime
    assert runtime is not None
    before = runtime.stream_status("table").frames_registered
    camera.publish(image(frame, stamp_ns))
    wait_for(lambda: runtime.stream_status("table").frames_registered > before, "a frame")


def test_answers_are_right(outcomes: list[Outcome]) -> None:
    asked = ((o.item.question.text, o.text, o.item.answer) for o in outcomes)
    wrong = [(question, text, truth) for question, text, truth in asked if text != truth]
    assert len(wrong) <= 0.03 * len(outcomes), wrong


def test_answers_are_those_of_the_plain_loop(outcomes: list[Outcome]) -> None:
    different = [o for o in outcomes if o.token_ids != o.reference_ids]
    assert not different


def test_every_frame_was_seen(outcomes: list[Outcome]) -> None:
    assert [o.frames for o in outcomes] == [o.item.scene.n_frames for o in outcomes]
    assert {o.frames for o in outcomes} == set(range(1, 13))
