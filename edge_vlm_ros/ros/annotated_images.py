"""Publishes `~/streams/NAME/annotated`: the last question and answer on the frame they saw."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rclpy.node import Node
from sensor_msgs.msg import Image

from edge_vlm_ros.runtime import AnswerResult

from .annotation import Rgb, annotate
from .publishers import Publishers
from .stamps import ns_to_stamp

MAX_FRAMES = 16
MAX_BYTES = 64 * 2**20
"""Of the registered frames of one stream that are kept to be drawn on."""

_MAX_WAITING = 4


@dataclass(frozen=True, eq=False)
class _Drawing:
    rgb: Rgb
    stamp_ns: int
    result: AnswerResult


class AnnotatedImages:
    """Keeps the newest registered frames of each stream and draws answers on them.

    ``keep`` and ``show`` are called from the coordinator's thread and return at once: drawing and
    publishing is done in a thread of its own. Frames are kept by reference, and only of streams
    that have the topic; nothing is drawn while nobody subscribes.
    """

    def __init__(self, node: Node, publishers: Publishers, frame_id: Callable[[str], str]) -> None:
        """``frame_id`` gives that of a stream's camera."""
        self._node = node
        self._publishers = publishers
        self._frame_id = frame_id
        self._frames: dict[str, OrderedDict[int, Rgb]] = {}
        self._waiting: queue.Queue[_Drawing | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def keep(self, stream: str, stamp_ns: int, rgb: Rgb) -> None:
        """A frame was registered: an answer may be about it."""
        if stream not in self._publishers.annotated:
            return
        frames = self._frames.setdefault(stream, OrderedDict())
        frames[stamp_ns] = rgb
        frames.move_to_end(stamp_ns)
        size = sum(frame.nbytes for frame in frames.values())
        while len(frames) > 1 and (len(frames) > MAX_FRAMES or size > MAX_BYTES):
            size -= frames.popitem(last=False)[1].nbytes

    def show(self, result: AnswerResult) -> None:
        """An answer has ended: draw it on the newest frame that it used, if that is still kept."""
        publisher = self._publishers.annotated.get(result.stream)
        if publisher is None or publisher.get_subscription_count() == 0:
            return
        stamp_ns = result.context.last_stamp_ns
        rgb = self._frames.get(result.stream, OrderedDict()).get(stamp_ns)
        if rgb is None or result.context.frames == 0:
            self._node.get_logger().debug(
                f"answer {result.answer_id} is not drawn: its newest frame is not kept any more"
            )
            return
        if self._waiting.qsize() >= _MAX_WAITING:  # nobody looks at that many
            with suppress(queue.Empty):
                self._waiting.get_nowait()
        self._waiting.put(_Drawing(rgb, stamp_ns, result))
        if self._thread is None:
            self._thread = threading.Thread(target=self._draw_all, name="annotate", daemon=True)
            self._thread.start()

    def clear(self) -> None:
        """Let go of all frames, and of the thread. Not while ``keep`` or ``show`` may be called."""
        self._frames.clear()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def _draw_all(self) -> None:
        while (drawing := self._waiting.get()) is not None:
            publisher = self._publishers.annotated.get(drawing.result.stream)
            if publisher is None:
                continue
            try:
                publisher.publish(self._message(drawing))
            except Exception as error:  # a picture that fails must not end those after it
                self._node.get_logger().warning(
                    f"answer {drawing.result.answer_id} could not be drawn: {error}"
                )

    def _message(self, drawing: _Drawing) -> Image:
        result = drawing.result
        answer = result.text or f"({result.error or result.finish_reason.value})"
        picture = annotate(drawing.rgb, result.question, answer)
        height, width, _ = picture.shape
        message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
        message.header.stamp = ns_to_stamp(drawing.stamp_ns)
        message.header.frame_id = self._frame_id(result.stream)
        message.data.frombytes(picture.tobytes())
        return message
