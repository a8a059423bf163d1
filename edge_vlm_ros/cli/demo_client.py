"""What the demonstration knows of the robot: pictures, the truth about them, and answers."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import String

from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.demo.render import Picture
from edge_vlm_ros.demo.stream import TableStream
from edge_vlm_ros.msg import ContextUsed, StreamStatus
from edge_vlm_ros.ros.demo_camera import IMAGE_QOS, TRUTH_QOS
from edge_vlm_ros.ros.goals import send_goal
from edge_vlm_ros.ros.stamps import stamp_to_ns

_REMEMBERED_PICTURES = 64
_TRUTH_S = 5.0


@dataclass(frozen=True)
class FrameRange:
    """The frames ``start`` .. ``stop`` - 1 of a table."""

    start: int
    stop: int


class CameraView:
    """One camera as its topics tell it: pictures by number, numbers by stamp."""

    def __init__(self, node: Node, stream: str) -> None:
        self.stream = stream
        self.published_frames = 0
        self._heard = threading.Condition()
        self._table: TableStream | None = None
        self._index_of: dict[int, int] = {}
        self._pictures: OrderedDict[int, Picture] = OrderedDict()
        node.create_subscription(String, f"/{stream}/truth", self._on_truth, TRUTH_QOS)
        node.create_subscription(Image, f"/{stream}/image_raw", self._on_image, IMAGE_QOS)
        node.create_subscription(
            StreamStatus, f"/edge_vlm/streams/{stream}/status", self._on_status, 10
        )

    @property
    def table(self) -> TableStream:
        if self._table is None:
            raise RuntimeError(f"nothing has been heard from the camera of stream {self.stream}")
        return self._table

    @property
    def newest(self) -> int:
        """Number of the newest frame; -1 before the first."""
        with self._heard:
            return max(self._index_of.values(), default=-1)

    def frames_of(self, context: ContextUsed) -> FrameRange:
        """The frames an answer saw. An answer may be here before the truth about its frames;
        raises TimeoutError when that does not come."""
        stamps = [stamp_to_ns(context.first_stamp), stamp_to_ns(context.last_stamp)]
        with self._heard:
            known = self._heard.wait_for(
                lambda: all(stamp in self._index_of for stamp in stamps), _TRUTH_S
            )
            if not known:
                raise TimeoutError(f"no truth about stream {self.stream} in {_TRUTH_S:g} s")
            first, last = (self._index_of[stamp] for stamp in stamps)
        return FrameRange(first, last + 1)

    def pictures(self, frames: FrameRange) -> list[Picture]:
        """The pictures of a range that were received, uint8 [height, width, 3] RGB."""
        with self._heard:
            numbered = {self._index_of.get(stamp): p for stamp, p in self._pictures.items()}
        return [numbered[i] for i in range(frames.start, frames.stop) if i in numbered]

    def _on_truth(self, message: String) -> None:
        truth = json.loads(message.data)
        with self._heard:
            if self._table is None:
                self._table = TableStream(**truth["table"])
            self._index_of[truth["stamp_ns"]] = truth["frame"]
            self._heard.notify_all()

    def _on_image(self, message: Image) -> None:
        flat = np.frombuffer(message.data, np.uint8)
        with self._heard:
            picture = flat.reshape(message.height, message.width, 3)
            self._pictures[stamp_to_ns(message.header.stamp)] = picture
            if len(self._pictures) > _REMEMBERED_PICTURES:
                self._pictures.popitem(last=False)

    def _on_status(self, message: StreamStatus) -> None:
        self.published_frames = message.frames if message.published.n > 1 else 0


class DemoClient(Node):
    """Asks questions and listens to the cameras. Spin it in a thread of its own."""

    def __init__(self, streams: tuple[str, ...], **node_arguments: Any) -> None:
        super().__init__("edge_vlm_demo", **node_arguments)
        self.views = {stream: CameraView(self, stream) for stream in streams}
        self._client = ActionClient(
            self, AskQuestion, "/edge_vlm/ask", feedback_sub_qos_profile=QoSProfile(depth=200)
        )

    def ready(self) -> bool:
        """Whether the node answers and all streams hold frames."""
        return self._client.server_is_ready() and all(
            view.published_frames > 1 for view in self.views.values()
        )

    def ask(
        self, goal: AskQuestion.Goal, on_delta: Callable[[str], None], timeout: float
    ) -> AskQuestion.Result:
        """Ask and wait. Raises RuntimeError when rejected, TimeoutError after ``timeout`` s."""
        done = threading.Event()
        outcome: list[AskQuestion.Result | None] = []

        def finish(result: AskQuestion.Result | None) -> None:
            outcome.append(result)
            done.set()

        def accepted(future: Any) -> None:
            handle = future.result()
            if not handle.accepted:
                finish(None)
                return
            handle.get_result_async().add_done_callback(lambda f: finish(f.result().result))

        send_goal(self, self._client, goal, lambda m: on_delta(m.feedback.delta), accepted)
        if not done.wait(timeout):
            raise TimeoutError(f"no answer to {goal.question!r} in {timeout:g} s")
        if outcome[0] is None:
            raise RuntimeError(f"the question {goal.question!r} was rejected: see the log")
        return outcome[0]
