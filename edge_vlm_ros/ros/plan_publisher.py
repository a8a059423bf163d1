"""Publishes plans without keeping the coordinator from the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.node import Node

from edge_vlm_ros.runtime.status import PlanRecord

from .convert import plan_message
from .publishers import Publishers

_MAX_WAITING = 256


class PlanPublisher:
    """Takes plans from the coordinator's thread and publishes them in one of the executor's.

    A message has all alternatives: making it takes longer than the decision did. Plans are left
    out while nobody listens or ``wanted`` is false; beyond 256 that wait, the oldest are.
    """

    def __init__(self, node: Node, publishers: Publishers, wanted: Callable[[], bool]) -> None:
        self._publishers = publishers
        self._wanted = wanted
        self._waiting: deque[PlanRecord] = deque(maxlen=_MAX_WAITING)
        group = MutuallyExclusiveCallbackGroup()  # keeps the order
        self._wake = node.create_guard_condition(self._publish, group)

    def add(self, record: PlanRecord) -> None:
        if self._publishers.plans.get_subscription_count() and self._wanted():
            self._waiting.append(record)
            self._wake.trigger()

    def _publish(self) -> None:
        while self._waiting:
            message = plan_message(self._waiting.popleft(), self._publishers.header())
            self._publishers.plans.publish(message)
