"""A robot for benchmarks: the node in a process of its own, and a client beside it."""

from __future__ import annotations

import array
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import rclpy
from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.msg import StreamStatus
from lifecycle_msgs.srv import GetState
from rclpy.action import ActionClient
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from edge_vlm_ros.demo.render import Picture
from edge_vlm_ros.ros.goals import send_goal

STREAM = "camera"
_START_S = 120.0


def image_message(rgb: Picture, stamp_ns: int) -> Image:
    """An rgb8 Image of uint8 [height, width, 3]."""
    message = Image(height=rgb.shape[0], width=rgb.shape[1], encoding="rgb8")
    message.step = 3 * rgb.shape[1]
    message.data = array.array("B", rgb.tobytes())
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
    return message


@dataclass(frozen=True)
class TimedAnswer:
    """An answer, and when its first token and its end reached the client (monotonic seconds)."""

    result: AskQuestion.Result
    asked: float
    first_token: float
    finished: float


class Robot:
    """Publishes frames on /camera/image_raw and asks /edge_vlm. Use it as a context manager."""

    def __init__(self) -> None:
        self._owns_context = not rclpy.ok()
        if self._owns_context:
            rclpy.init(args=[])
        self.node = Node("benchmark_robot")
        self.frames_published = 0
        qos = QoSProfile(depth=20)
        self._images = self.node.create_publisher(Image, "/camera/image_raw", qos)
        self._client = ActionClient(
            self.node, AskQuestion, "/edge_vlm/ask", feedback_sub_qos_profile=QoSProfile(depth=200)
        )
        self.node.create_subscription(
            StreamStatus, f"/edge_vlm/streams/{STREAM}/status", self._on_status, 10
        )
        self._get_state = self.node.create_client(GetState, "/edge_vlm/get_state")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def __enter__(self) -> Robot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.shutdown()
        self._thread.join(5.0)
        self.node.destroy_node()
        if self._owns_context:
            rclpy.try_shutdown()

    def wait_for_node(self) -> None:
        """Until the node is active and its camera subscription is connected; frames published
        before would be lost."""
        end = time.monotonic() + _START_S
        while not (self._client.server_is_ready() and self._images.get_subscription_count()):
            if time.monotonic() > end:
                raise TimeoutError(f"the node did not start in {_START_S:g} s")
            time.sleep(0.05)
        while self._node_state() != "active":
            if time.monotonic() > end:
                raise TimeoutError(f"the node was not active after {_START_S:g} s")
            time.sleep(0.05)

    def _node_state(self) -> str:
        answered = threading.Event()
        future = self._get_state.call_async(GetState.Request())
        future.add_done_callback(lambda _: answered.set())
        return future.result().current_state.label if answered.wait(_START_S) else ""

    def publish(self, rgb: Picture) -> None:
        self._images.publish(image_message(rgb, time.time_ns()))

    def wait_for_frames(self, n: int) -> None:
        """Until the node's status says that ``n`` frames are in the history and published."""
        end = time.monotonic() + _START_S
        while self.frames_published < n:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.frames_published} of {n} frames were published")
            time.sleep(0.02)

    def ask(self, question: str, max_tokens: int = 0, timeout: float = 300.0) -> TimedAnswer:
        """Raises RuntimeError when rejected, TimeoutError."""
        done = threading.Event()
        outcome: dict[str, Any] = {}

        def feedback(message: Any) -> None:
            if message.feedback.generated_tokens:
                outcome.setdefault("first", time.monotonic())

        def accepted(future: Any) -> None:
            handle = future.result()
            if not handle.accepted:
                done.set()
                return
            handle.get_result_async().add_done_callback(finished)

        def finished(future: Any) -> None:
            outcome["finished"] = time.monotonic()
            outcome["result"] = future.result().result
            done.set()

        goal = AskQuestion.Goal(stream=STREAM, question=question, max_tokens=max_tokens)
        asked = time.monotonic()
        send_goal(self.node, self._client, goal, feedback, accepted)
        if not done.wait(timeout):
            raise TimeoutError(f"no answer in {timeout:g} s")
        if "result" not in outcome:
            raise RuntimeError("the question was rejected: see the node's log")
        first = outcome.get("first", outcome["finished"])
        return TimedAnswer(outcome["result"], asked, first, outcome["finished"])

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            return

    def _on_status(self, message: StreamStatus) -> None:
        complete = message.published.n == message.registered.n
        self.frames_published = message.frames if complete else 0


@contextmanager
def node_process(profile: Path, **parameters: object) -> Iterator[subprocess.Popen[bytes]]:
    """The node with one stream, ``camera``; its log goes to a temporary file."""
    values = {
        "model_profile": profile,
        "streams": f"[{STREAM}]",
        f"{STREAM}.image_topic": "/camera/image_raw",
        f"{STREAM}.qos.reliability": "reliable",
        **parameters,
    }
    arguments = [text for name, value in values.items() for text in ("-p", f"{name}:={value}")]
    command = [sys.executable, "-m", "edge_vlm_ros.cli.edge_vlm", "--ros-args", *arguments]
    with tempfile.NamedTemporaryFile(prefix="edge_vlm_benchmark_", suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        except BaseException:
            print(Path(log.name).read_text(errors="replace")[-2000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(30)
