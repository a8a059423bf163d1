"""What the node publishes: one table of topics, and the publishers made from it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from edge_vlm_ros.msg import (
    Answer,
    AnswerToken,
    EngineStatus,
    Metrics,
    PlacementStatus,
    Plan,
    PlanningStatus,
    Rejection,
    StreamStatus,
)

from .throttle import Throttle


@dataclass(frozen=True)
class Topic:
    """One published topic. QoS is reliable and volatile with this depth."""

    name: str
    message: type
    depth: int
    description: str


TOKENS = Topic("~/tokens", AnswerToken, 200, "Pieces of all answers as they are generated")
ANSWERS = Topic("~/answers", Answer, 20, "Finished answers")
METRICS = Topic("~/metrics", Metrics, 20, "Times and sizes of each finished answer, flat numbers")
REJECTIONS = Topic(
    "~/rejections", Rejection, 50, "Questions not accepted and frames not registered, with reasons"
)
STREAM_STATUS = Topic(
    "~/streams/NAME/status", StreamStatus, 5, "State and counters of each stream, 1 Hz"
)
ENGINE_STATUS = Topic(
    "~/engines/NAME/status", EngineStatus, 5, "State and counters of each engine, 1 Hz"
)
ANNOTATED = Topic(
    "~/streams/NAME/annotated",
    Image,
    1,
    "The last question and answer drawn on the newest frame that the answer used; only with "
    "`annotated_images`",
)
PLACEMENT = Topic(
    "~/placement",
    PlacementStatus,
    5,
    "Which engine holds what, how often state was reused, imported or replayed, limits, 1 Hz",
)
PLANS = Topic(
    "~/plans",
    Plan,
    100,
    "How each question is to be answered, all alternatives with predicted times, and what became "
    "of it; when it is decided and when the answer has ended",
)
PLANNING = Topic(
    "~/planning",
    PlanningStatus,
    5,
    "Policy, shares of the engines, how well times are foreseen, 1 Hz",
)
DIAGNOSTICS = Topic(
    "/diagnostics",
    DiagnosticArray,
    10,
    "Node, streams, engines, placement, planning, encoder and caches, 1 Hz",
)
TOPICS = (
    TOKENS,
    ANSWERS,
    METRICS,
    REJECTIONS,
    STREAM_STATUS,
    ANNOTATED,
    ENGINE_STATUS,
    PLACEMENT,
    PLANS,
    PLANNING,
    DIAGNOSTICS,
)


class Publishers:
    """All publishers of the node. Publishing is thread-safe.

    Those of streams and engines exist from ``add_status`` to ``remove_status``.
    """

    def __init__(self, node: Node, throttle: Throttle) -> None:
        self._node = node
        self._throttle = throttle
        self.tokens = self._create(TOKENS)
        self.answers = self._create(ANSWERS)
        self.metrics = self._create(METRICS)
        self.rejections = self._create(REJECTIONS)
        self.placement = self._create(PLACEMENT)
        self.plans = self._create(PLANS)
        self.planning = self._create(PLANNING)
        self.diagnostics = self._create(DIAGNOSTICS)
        self.streams: dict[str, Publisher] = {}
        self.engines: dict[str, Publisher] = {}
        self.annotated: dict[str, Publisher] = {}

    def header(self) -> Header:
        """A header with the node's time."""
        return Header(stamp=self._node.get_clock().now().to_msg())

    def add_status(
        self, streams: tuple[str, ...], engines: tuple[str, ...], annotated: bool
    ) -> None:
        self.streams = {name: self._create(STREAM_STATUS, name) for name in streams}
        self.engines = {name: self._create(ENGINE_STATUS, name) for name in engines}
        if annotated:
            self.annotated = {name: self._create(ANNOTATED, name) for name in streams}

    def remove_status(self) -> None:
        publishers = (self.streams, self.engines, self.annotated)
        self.streams, self.engines, self.annotated = {}, {}, {}
        for publisher in chain.from_iterable(group.values() for group in publishers):
            self._node.destroy_publisher(publisher)

    def reject_question(self, stream: str, reason: str, text: str) -> None:
        """Tell that a question was not accepted: on the topic and in the log."""
        self._node.get_logger().warning(f"question about {stream!r} rejected ({reason}): {text}")
        self._reject(stream, "question", reason, text)

    def reject_frame(self, stream: str, reason: str, text: str) -> None:
        """Tell that a frame was not registered. Of one reason only so often; the counters in the
        stream's status are complete."""
        held = self._throttle.passes("frame", stream, reason)
        if held is None:
            return
        if held:
            text = f"{text} ({held} more such frames since the last message)"
        self._node.get_logger().warning(f"stream {stream}: frame not used ({reason}): {text}")
        self._reject(stream, "frame", reason, text)

    def _reject(self, stream: str, what: str, reason: str, text: str) -> None:
        self.rejections.publish(
            Rejection(header=self.header(), stream=stream, what=what, reason=reason, text=text)
        )

    def _create(self, topic: Topic, name: str = "") -> Publisher:
        return self._node.create_publisher(
            topic.message, topic.name.replace("NAME", name), QoSProfile(depth=topic.depth)
        )
