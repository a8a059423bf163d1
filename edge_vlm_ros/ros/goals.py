"""Sending action goals from a thread other than the executor's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.action import ActionClient
from rclpy.node import Node


def send_goal(
    node: Node,
    client: ActionClient,
    goal: Any,
    on_feedback: Callable[[Any], None],
    on_response: Callable[[Any], None],
) -> None:
    """Send ``goal`` on the thread that spins ``node``, which must be a single one.

    ``on_feedback`` gets feedback messages, ``on_response`` the future of the goal handle. rclpy's
    action client notes a request down only after sending it, and drops a response that another
    thread receives in between: the goal would run and nobody hear of it.
    """

    def send() -> None:
        client.send_goal_async(goal, feedback_callback=on_feedback).add_done_callback(on_response)

    assert node.executor is not None, "the node is not spun"
    node.executor.create_task(send)
