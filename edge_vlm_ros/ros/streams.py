"""Camera subscriptions: from image messages to frames of the runtime."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from edge_vlm_ros.runtime import NotActiveError, Runtime

from .image_conversion import ImageConversionError, compressed_to_rgb, image_to_rgb
from .publishers import Publishers
from .settings import CameraSettings
from .stamps import is_usable, stamp_to_ns

_ONE_DATAGRAM = 65_507
"""Bytes of the largest UDP datagram: what is larger is lost as a whole with any of its parts."""


class CameraSubscription:
    """Subscribes to one camera and gives its frames to the runtime while that is active.

    Images of one camera are handled one after the other, so that frames are registered in the
    order of their arrival.
    """

    def __init__(
        self, node: Node, settings: CameraSettings, runtime: Runtime, publishers: Publishers
    ) -> None:
        self.settings = settings
        self._node = node
        self._runtime = runtime
        self._publishers = publishers
        self.frame_id = ""
        """Of the newest image: the camera's name in tf."""
        self._told_of_stamp = False
        self._checked_reliability = False
        self._convert: Callable[[Any], Any] = (
            compressed_to_rgb if settings.transport == "compressed" else image_to_rgb
        )
        self._message: type = CompressedImage if settings.transport == "compressed" else Image
        self._subscription = node.create_subscription(
            self._message,
            settings.topic,
            self._on_image,
            settings.qos(),
            callback_group=MutuallyExclusiveCallbackGroup(),
        )

    @property
    def topic(self) -> str:
        """The full name, after namespaces and remapping."""
        return str(self._subscription.topic_name)

    @property
    def _is_reliable(self) -> bool:
        return self.settings.qos().reliability == ReliabilityPolicy.RELIABLE

    def close(self) -> None:
        self._node.destroy_subscription(self._subscription)

    def why_silent(self) -> str:
        """What in the graph explains that no image comes, in words."""
        publishers = self._node.get_publishers_info_by_topic(self.topic)
        if not publishers:
            return f"nothing publishes {self.topic}"
        wanted = f"sensor_msgs/msg/{self._message.__name__}"
        fitting = [info for info in publishers if info.topic_type == wanted]
        if not fitting:
            return (
                f"{self.topic} carries {publishers[0].topic_type}, not {wanted}: "
                f"set {self.settings.stream}.transport or {self.settings.stream}.image_topic"
            )
        ours = self.settings.qos()
        for info in fitting:
            theirs = info.qos_profile
            if (
                ours.reliability == ReliabilityPolicy.RELIABLE
                and theirs.reliability == ReliabilityPolicy.BEST_EFFORT
            ):
                return f"the publisher is best effort: set {self.settings.stream}.qos.reliability"
            if (
                ours.durability == DurabilityPolicy.TRANSIENT_LOCAL
                and theirs.durability == DurabilityPolicy.VOLATILE
            ):
                return f"the publisher is volatile: set {self.settings.stream}.qos.durability"
        advice = f"set {self.settings.stream}.qos.reliability: reliable"
        lost = f", or sends large images that get lost over best effort: {advice}"
        return f"{self.topic} has a publisher that sends nothing{'' if self._is_reliable else lost}"

    def _on_image(self, message: Image | CompressedImage) -> None:
        received_at = time.monotonic()
        stream = self.settings.stream
        if not self._runtime.active:
            return
        if not self._checked_reliability:
            self._checked_reliability = True
            self._advise_reliability(len(message.data))
        try:
            rgb = self._convert(message)
            self.frame_id = message.header.frame_id
            self._runtime.add_frame(stream, rgb, self._stamp_ns(message), received_at)
        except ImageConversionError as error:
            self._note_invalid(error)
        except NotActiveError:
            # Deactivated while this image was converted.
            return

    def _note_invalid(self, error: ImageConversionError) -> None:
        try:
            self._runtime.note_invalid_frame(self.settings.stream)
        except NotActiveError:
            return
        self._publishers.reject_frame(self.settings.stream, error.reason, error.text)

    def _advise_reliability(self, image_bytes: int) -> None:
        """Images of many datagrams hardly ever arrive whole over best effort; nothing tells."""
        if image_bytes <= _ONE_DATAGRAM or self._is_reliable:
            return
        publishers = self._node.get_publishers_info_by_topic(self.topic)
        if any(p.qos_profile.reliability == ReliabilityPolicy.RELIABLE for p in publishers):
            self._node.get_logger().warning(
                f"stream {self.settings.stream}: images of {image_bytes} bytes over best effort "
                "may get lost, and the camera could send them reliably: set "
                f"{self.settings.stream}.qos.reliability: reliable"
            )

    def _stamp_ns(self, message: Image | CompressedImage) -> int:
        stamp = message.header.stamp
        if is_usable(stamp):
            return stamp_to_ns(stamp)
        if not self._told_of_stamp:
            self._told_of_stamp = True
            self._node.get_logger().warning(
                f"stream {self.settings.stream}: images on {self.topic} have no usable stamp "
                f"({stamp.sec} s, {stamp.nanosec} ns); the time of their arrival is used instead"
            )
        return int(self._node.get_clock().now().nanoseconds)
