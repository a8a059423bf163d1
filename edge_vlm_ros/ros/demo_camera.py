"""A camera that films an endless table: pictures on one topic, the truth about them on another."""

from __future__ import annotations

import array
import json
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import String

from edge_vlm_ros.demo.stream import TableStream

from .parameters import Change, ParameterSpec

# A picture can be in an answer before whoever checks it has found this topic.
TRUTH_QOS = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
# Reliable serves every subscriber. With best effort, pictures larger than the receive buffers of
# the loopback device get lost.
IMAGE_QOS = QoSProfile(depth=5)

PARAMETERS = (
    ParameterSpec("seed", 1, "Which table is filmed", Change.START, (0, 2**31 - 1)),
    ParameterSpec("width", 640, "Picture width in pixels", Change.START, (16, 4096)),
    ParameterSpec("height", 480, "Picture height in pixels", Change.START, (16, 4096)),
    ParameterSpec("event_rate", 0.3, "Chance of an event at a frame", Change.START, (0.0, 0.4)),
    ParameterSpec("fps", 2.0, "Pictures a second", Change.START, (0.05, 100.0)),
    ParameterSpec("frame_id", "demo_camera_optical_frame", "Of the headers", Change.START),
)
_TABLE_ARGUMENTS = ("seed", "width", "height", "event_rate")


class DemoCamera(Node):
    """Publishes ``image_raw`` (sensor_msgs/Image, rgb8) and ``truth`` (std_msgs/String, JSON).

    A truth names the picture's stamp in nanoseconds, its number ``frame``, and the arguments of
    ``TableStream`` that draw the same table again, so that a listener can tell what is true for any
    range of frames.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("demo_camera", **node_arguments)
        values = {
            spec.name: self.declare_parameter(spec.name, spec.default, spec.descriptor()).value
            for spec in PARAMETERS
        }
        self._table_arguments = {name: values[name] for name in _TABLE_ARGUMENTS}
        self._frame_id = values["frame_id"]
        self._table = TableStream(**self._table_arguments)
        self._index = 0
        self._images = self.create_publisher(Image, "image_raw", IMAGE_QOS)
        self._truths = self.create_publisher(String, "truth", TRUTH_QOS)
        self.create_timer(1.0 / values["fps"], self._publish)
        self.get_logger().info(
            f"publishing {self._images.topic_name}, {values['width']}x{values['height']}, "
            f"{values['fps']:g} pictures a second"
        )

    def _publish(self) -> None:
        rgb = self._table.frame(self._index)
        now = self.get_clock().now()  # a picture is taken when it is finished, not begun
        message = Image()
        message.header.stamp = now.to_msg()
        message.header.frame_id = self._frame_id
        message.height, message.width = rgb.shape[:2]
        message.encoding = "rgb8"
        message.step = 3 * message.width
        message.data = array.array("B", rgb.tobytes())
        truth = {"frame": self._index, "stamp_ns": now.nanoseconds, "table": self._table_arguments}
        # The truth goes first: who has the picture can look it up.
        self._truths.publish(String(data=json.dumps(truth)))
        self._images.publish(message)
        self._index += 1
