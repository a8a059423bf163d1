"""A node with the demo model and a client beside it, in one process over real ROS 2."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from action_msgs.msg import GoalStatus
from diagnostic_msgs.msg import DiagnosticArray
from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.msg import AnswerToken, Metrics, Rejection
from rclpy.action import ActionClient
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import Image

from edge_vlm_ros.ros.goals import send_goal
from edge_vlm_ros.ros.node import EdgeVlmNode, RuntimeFactory
from edge_vlm_ros.ros.spinning import spin_in_background
from edge_vlm_ros.ros.stamps import ns_to_stamp
from edge_vlm_ros.runtime import Runtime

PATIENCE_S = 30.0
"""Longest wait for anything. Reached only when something hangs."""

TWO_ENGINES: dict[str, Any] = {
    "engines": ["cpu", "second"],
    "engine__cpu__n_threads": 1,
    "engine__second__device": "rpc",
    "engine__second__n_threads": 1,
    "placement__retry_s": 0.2,
    "planning__calibration": "never",
    "table__ingest_engine": "cpu",
    "status_period": 0.1,
    "diagnostics__period": 0.1,
}
"""Parameters of a node whose second engine is a process of its own. Where frames are computed does
not depend on how fast this machine is just now."""

ENDED = {
    GoalStatus.STATUS_SUCCEEDED: "succeeded",
    GoalStatus.STATUS_CANCELED: "canceled",
    GoalStatus.STATUS_ABORTED: "aborted",
}


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Wait until ``condition`` is true and return its value."""
    limit = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.005)
    return value


class Asked:
    """One goal that a client has sent."""

    def __init__(self, executor: SingleThreadedExecutor) -> None:
        self.executor = executor
        self.feedback: list[AskQuestion.Feedback] = []
        self.accepted: bool | None = None
        self.handle: Any = None
        self.response: Any = None
        self.answered = threading.Event()
        self.ended = threading.Event()

    def wait_accepted(self) -> bool:
        assert self.answered.wait(PATIENCE_S), "the server did not answer the goal request"
        return bool(self.accepted)

    def wait_state(self, state: str) -> None:
        wait_for(lambda: any(f.state == state for f in self.feedback), f"feedback {state}")

    def wait_end(self) -> tuple[str, AskQuestion.Result]:
        """How the goal ended (succeeded, canceled, aborted) and its result."""
        assert self.ended.wait(PATIENCE_S), "the goal did not end"
        return ENDED[self.response.status], self.response.result

    def cancel(self) -> Any:
        """Cancel and return the server's response."""
        done = threading.Event()
        sent: list[Any] = []

        def send() -> None:
            sent.append(self.handle.cancel_goal_async())
            sent[0].add_done_callback(lambda _: done.set())

        self.executor.create_task(send)  # see send_goal
        assert done.wait(PATIENCE_S), "the cancel request was not answered"
        return sent[0].result()


class Client(Node):
    """Publishes camera images, asks, and keeps everything it hears."""

    def __init__(self, context: Context, streams: dict[str, str]) -> None:
        super().__init__("client", context=context)
        # rclpy's default depth of 10 loses the responses to a burst of goals in the client.
        burst = QoSProfile(depth=1000)
        self.action = ActionClient(
            self,
            AskQuestion,
            "/edge_vlm/ask",
            goal_service_qos_profile=burst,
            result_service_qos_profile=burst,
            cancel_service_qos_profile=burst,
            feedback_sub_qos_profile=burst,
        )
        self.cameras = {
            stream: self.create_publisher(Image, topic, qos_profile_sensor_data)
            for stream, topic in streams.items()
        }
        self.rejections: list[Rejection] = []
        self.tokens: list[AnswerToken] = []
        self.metrics: list[Metrics] = []
        for kind, topic, kept in (
            (Rejection, "rejections", self.rejections),
            (AnswerToken, "tokens", self.tokens),
            (Metrics, "metrics", self.metrics),
        ):
            self.create_subscription(
                kind, f"/edge_vlm/{topic}", kept.append, QoSProfile(depth=1000)
            )

    def ask(self, question: str = "Where is the red cup?", **goal: Any) -> Asked:
        asked = Asked(self.executor)

        def on_response(future: Any) -> None:
            asked.handle = future.result()
            asked.accepted = asked.handle.accepted
            if asked.accepted:
                asked.handle.get_result_async().add_done_callback(on_result)
            asked.answered.set()

        def on_result(future: Any) -> None:
            asked.response = future.result()
            asked.ended.set()

        send_goal(
            self,
            self.action,
            AskQuestion.Goal(question=question, **goal),
            lambda message: asked.feedback.append(message.feedback),
            on_response,
        )
        return asked

    def call(self, kind: type, name: str, **request: Any) -> Any:
        """Call one of the node's services."""
        client = self.create_client(kind, f"/edge_vlm/{name}")
        try:
            assert client.wait_for_service(PATIENCE_S)
            done = threading.Event()
            future = client.call_async(kind.Request(**request))
            future.add_done_callback(lambda _: done.set())
            assert done.wait(PATIENCE_S), f"service {name} did not answer"
            return future.result()
        finally:
            self.destroy_client(client)

    def publish(self, stream: str, rgb: np.ndarray, stamp_ns: int = 0) -> None:
        self.cameras[stream].publish(image(rgb, stamp_ns))


def image(rgb: np.ndarray, stamp_ns: int) -> Image:
    height, width, _ = rgb.shape
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.header.stamp = ns_to_stamp(stamp_ns)
    message.data.frombytes(rgb.tobytes())
    return message


def picture(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    """One of many different plain pictures, uint8 [height, width, 3]."""
    shade = np.array([90 + number % 100, 120, 110], dtype=np.uint8)
    return np.broadcast_to(shade, (height, width, 3)).copy()


class World:
    """The node under test and a client."""

    def __init__(self, node: EdgeVlmNode, client: Client) -> None:
        self.node = node
        self.client = client

    def start(self) -> None:
        assert self.node.change("configure") and self.node.change("activate")
        self.wait_connected()

    def wait_connected(self) -> None:
        """Discovery takes a moment: wait for every topic that a test uses."""
        assert self.client.action.wait_for_server(PATIENCE_S)
        for publisher in self.client.cameras.values():
            wait_for(lambda p=publisher: p.get_subscription_count() > 0, "the node's subscription")
        outputs = self.node.outputs
        for output in (outputs.rejections, outputs.tokens, outputs.metrics):
            wait_for(lambda p=output: p.get_subscription_count() > 0, "the client's subscription")

    def frames(self, stream: str, count: int, first: int = 0) -> None:
        """Publish ``count`` different frames and wait until they are registered."""
        runtime = self.node.runtime
        assert runtime is not None
        for number in range(first, first + count):
            before = runtime.stream_status(stream).frames_registered
            self.client.publish(stream, picture(number), stamp_ns=(number + 1) * 10**9)
            wait_for(
                lambda b=before: runtime.stream_status(stream).frames_registered > b,
                "a frame to be registered",
            )


def heard(made: World, kind: type, topic: str) -> list[Any]:
    """A list that fills with what comes on ``topic``."""
    messages: list[Any] = []
    made.client.create_subscription(kind, topic, messages.append, QoSProfile(depth=10))
    return messages


def set_parameter(made: World, name: str, value: Any) -> tuple[bool, str]:
    """Whether the node took a value, and why not."""
    result = made.node.set_parameters_atomically([Parameter(name, value=value)])
    return result.successful, result.reason


def level_of(arrays: list[DiagnosticArray], name: str) -> tuple[int, str] | None:
    """Level and message of the newest status called ``name``."""
    for array in reversed(arrays):
        for status in array.status:
            if status.name == name:
                return status.level[0], status.message
    return None


def values_of(arrays: list[DiagnosticArray], name: str) -> dict[str, str]:
    """Keys and values of the newest status called ``name``."""
    for array in reversed(arrays):
        for status in array.status:
            if status.name == name:
                return {pair.key: pair.value for pair in status.values}
    return {}


def rpc_servers() -> list[int]:
    """Process ids of the RPC servers that this process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = (status.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if parent == os.getpid() and "rpc_server" in command:
            found.append(int(status.parent.name))
    return found


@contextmanager
def world(
    streams: dict[str, str] | None = None,
    make_runtime: RuntimeFactory = Runtime,
    **parameters: Any,
) -> Iterator[World]:
    """A node with these streams (name -> topic) and parameters (dots as double underscores)."""
    streams = streams or {"table": "/table/image_raw"}
    given = {name.replace("__", "."): value for name, value in parameters.items()}
    given.setdefault("streams", list(streams))
    given.setdefault("log_throttle", 0.0)
    for stream, topic in streams.items():
        given.setdefault(f"{stream}.image_topic", topic)
    context = Context()
    rclpy.init(context=context)
    node = EdgeVlmNode(
        make_runtime,
        parameter_overrides=[Parameter(name, value=value) for name, value in given.items()],
        context=context,
    )
    client = Client(context, streams)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(client)

    def spin_client() -> None:
        try:
            executor.spin()
        except ExternalShutdownException:
            return

    spinner = threading.Thread(target=spin_client, daemon=True)
    spinner.start()
    try:
        with spin_in_background(node):
            yield World(node, client)
            node.close()
    finally:
        executor.shutdown(timeout_sec=2.0)
        spinner.join(5.0)
        client.action.destroy()
        client.destroy_node()
        node.destroy_node()
        rclpy.shutdown(context=context)
    assert node.callback_errors == 0, "callbacks of the node raised: see the log"
