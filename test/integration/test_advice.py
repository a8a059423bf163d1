"""What the node makes of unusable input and of set-ups that cannot work well."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from harness import World, image, picture, wait_for, world
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image


@pytest.fixture
def table() -> Iterator[World]:
    with world() as made:
        made.start()
        yield made


@pytest.mark.parametrize("stamp", [Time(sec=2**31 - 1, nanosec=2**32 - 1), Time()])
def test_an_unusable_stamp_is_replaced_by_the_time_of_arrival(table: World, stamp: Time) -> None:
    """Answers name the stamps of their frames: a stamp that is no time must not get that far."""
    message = image(picture(1), 0)
    message.header.stamp = stamp
    before = time.time()
    table.client.cameras["table"].publish(message)
    runtime = table.node.runtime
    wait_for(lambda: runtime.stream_status("table").frames_registered == 1, "the frame")
    ended, result = table.client.ask().wait_end()
    assert (ended, result.finish_reason, result.context.frames) == ("succeeded", "stop", 1)
    assert before - 1 < result.context.last_stamp.sec < time.time() + 1


def test_a_goal_whose_result_cannot_be_told_ends_with_the_reason(
    table: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("no such message")

    table.frames("table", 1)
    monkeypatch.setattr("edge_vlm_ros.ros.ask_server.result_message", fail)
    ended, result = table.client.ask().wait_end()
    assert (ended, result.finish_reason) == ("aborted", "error")
    assert "no such message" in result.error


@pytest.mark.parametrize("reliability", ["best_effort", "reliable"])
def test_large_images_over_best_effort_are_advised_against(
    reliability: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only where the camera could do better, and only once."""
    with world(table__qos__reliability=reliability) as made:
        assert made.node.change("configure") and made.node.change("activate")
        camera = made.client.create_publisher(Image, "/table/image_raw", QoSProfile(depth=5))
        wait_for(lambda: camera.get_subscription_count() > 0, "the node's subscription")
        runtime = made.node.runtime
        large = np.zeros((200, 200, 3), np.uint8)
        for n in (1, 2):
            camera.publish(image(large + np.uint8(n), n))
            wait_for(lambda n=n: runtime.stream_status("table").frames_received == n, "a frame")
    advised = capfd.readouterr().err.count("set table.qos.reliability: reliable")
    assert advised == (1 if reliability == "best_effort" else 0)


def test_a_second_node_of_the_same_name_is_noticed(capfd: pytest.CaptureFixture[str]) -> None:
    with world() as made:
        assert made.node.change("configure")
        twin = Node("edge_vlm", context=made.client.context)
        names = made.node.get_node_names_and_namespaces
        wait_for(lambda: names().count(("edge_vlm", "/")) > 1, "the twin in the graph")
        assert made.node.change("activate")
        twin.destroy_node()
    assert "another node /edge_vlm runs in this ROS_DOMAIN_ID" in capfd.readouterr().err


def test_a_twin_that_comes_later_is_noticed_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vlm_ros.ros.node._TWIN_PERIOD_S", 0.1)
    text, heard = "another node /edge_vlm runs in this ROS_DOMAIN_ID", ""

    def warned() -> bool:
        nonlocal heard
        heard += capfd.readouterr().err
        return text in heard

    with world() as made:
        made.start()
        assert not warned()
        twin = Node("edge_vlm", context=made.client.context)
        wait_for(warned, "the warning")
        time.sleep(0.5)  # some more periods
        twin.destroy_node()
    heard += capfd.readouterr().err
    assert heard.count(text) == 1
