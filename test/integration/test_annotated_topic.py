"""Answers on pictures and their energy, over real ROS 2."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from harness import World, picture, wait_for, world
from rclpy.qos import QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import Image

from edge_vlm_ros.ros import annotated_images
from edge_vlm_ros.ros.annotated_images import MAX_BYTES, MAX_FRAMES
from edge_vlm_ros.ros.stamps import stamp_to_ns

TOPIC = "/edge_vlm/streams/table/annotated"


def heard_images(made: World) -> list[Image]:
    """A list that fills with annotated images; subscribed to as image viewers do."""
    images: list[Image] = []
    made.client.create_subscription(Image, TOPIC, images.append, qos_profile_sensor_data)
    publisher = made.node.outputs.annotated["table"]
    wait_for(lambda: publisher.get_subscription_count() > 0, "the viewer's subscription")
    return images


def pixels(image: Image) -> np.ndarray:
    return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, 3)


def test_an_answer_is_drawn_on_the_newest_frame_that_it_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sensor = tmp_path / "energy1_input"
    sensor.write_text("0\n")
    with world(annotated_images=True, power_sensor=str(sensor)) as made:
        made.start()
        images = heard_images(made)
        made.frames("table", 3)
        asked = made.client.ask(max_tokens=4)
        assert asked.wait_accepted()
        counted = tmp_path / "counted"
        counted.write_text("2500000\n")
        counted.replace(sensor)  # at once: the meter reads it all the time
        made.frames("table", 1, first=3)  # too late for the question
        _, result = asked.wait_end()
        image = wait_for(lambda: images, "the annotated image")[0]
        assert (
            stamp_to_ns(image.header.stamp) == stamp_to_ns(result.context.last_stamp) == 3 * 10**9
        )
        assert (image.encoding, image.width, image.step) == ("rgb8", 462, 3 * 462)
        drawn = pixels(image)
        assert (drawn[image.height // 2] == picture(2)[0, 0]).all()
        assert drawn[0].max() < 60 and drawn[-1].max() < 60, "bands of text"
        # A counter that moved by 2.5 J while there was one answer.
        metrics = wait_for(lambda: made.client.metrics, "metrics")[0]
        assert metrics.energy_j == result.metrics.energy_j == 2.5
        assert made.node.state().power_sensor == str(sensor)
        asked = made.client.ask(max_tokens=1)
        asked.wait_end()
        wait_for(lambda: len(images) == 2, "the second annotated image")
        assert stamp_to_ns(images[1].header.stamp) == 4 * 10**9
    assert f"energy of answers is measured by {sensor}" in "".join(capfd.readouterr())


def test_nothing_is_drawn_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def annotate(rgb: np.ndarray, question: str, answer: str) -> np.ndarray:
        threads.append(threading.current_thread().name)
        return rgb

    monkeypatch.setattr(annotated_images, "annotate", annotate)
    with world(annotated_images=True, power_sensor="off") as made:
        made.start()
        made.frames("table", 1)
        _, result = made.client.ask(max_tokens=1).wait_end()
        assert result.metrics.energy_j == 0.0
        assert threads == [] and "annotate" not in {t.name for t in threading.enumerate()}
        images = heard_images(made)
        made.client.ask(max_tokens=1).wait_end()
        wait_for(lambda: images, "the annotated image")
        assert threads == ["annotate"]
        kept = made.node.annotated._frames["table"]
        for number in range(2, MAX_FRAMES + 9):
            made.node.annotated.keep("table", number, picture(number))
        assert list(kept) == list(range(9, MAX_FRAMES + 9))
        large = np.empty((MAX_BYTES // 3 + 1, 1, 3), np.uint8)
        made.node.annotated.keep("table", 99, large)
        assert list(kept) == [99], "the newest is kept however large it is"
        assert made.node.change("deactivate") and made.node.change("cleanup")
        assert "annotate" not in {t.name for t in threading.enumerate()}


def test_without_the_parameter_there_is_no_topic_and_nothing_is_kept() -> None:
    with world() as made:
        made.start()
        made.frames("table", 2)
        made.client.ask(max_tokens=1).wait_end()
        assert made.node.annotated._frames == {}
        assert TOPIC not in dict(made.node.get_topic_names_and_types())
        # A subscription to what is not published does no harm.
        made.client.create_subscription(Image, TOPIC, print, QoSProfile(depth=1))
        made.client.ask(max_tokens=1).wait_end()
        assert "annotate" not in {t.name for t in threading.enumerate()}
