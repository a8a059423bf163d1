from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from edge_vlm_ros.cli.demo_client import CameraView
from edge_vlm_ros.ros.demo_camera import DemoCamera


@pytest.fixture
def context() -> Iterator[Context]:
    context = Context()
    rclpy.init(context=context)
    yield context
    context.try_shutdown()


def test_who_comes_late_hears_the_truth_about_the_first_picture(context: Context) -> None:
    """The first answer can be about pictures that the node had before the demo found the topic."""
    camera = DemoCamera(context=context, namespace="/late")
    late = Node("late_client", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(camera)
    executor.add_node(late)
    try:
        camera._publish()
        camera._publish()
        view = CameraView(late, "late")
        end = time.monotonic() + 30.0
        while not view._index_of and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.1)
        assert min(view._index_of.values()) == 0
    finally:
        executor.shutdown()
        late.destroy_node()
        camera.destroy_node()
