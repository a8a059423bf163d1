"""`ros2 run edge_vlm_ros ask`: ask one question and print the answer as it is generated."""

from __future__ import annotations

import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, TextIO

import rclpy
from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from rclpy.utilities import remove_ros_args

from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.msg import Metrics, Rejection
from edge_vlm_ros.ros.goals import send_goal

from .arguments import goal_from, parser

OK = 0
ERROR = 1
USAGE = 2
NO_SERVER = 3
REJECTED = 4
DEADLINE = 5
CANCELLED = 130

_REASON_WAIT_S = 1.0
_CANCEL_WAIT_S = 5.0
_POLL_S = 2.0
_FEEDBACK_DEPTH = 200


class AnswerPrinter:
    """Prints deltas in order as they come and, at the end, what was missing of the full text.

    A lost feedback message stops the live printing; the rest comes from the result.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed = ""
        self._next = 0

    def delta(self, sequence: int, text: str) -> None:
        if not text or sequence != self._next:
            return
        self._next += 1
        self._write(text)

    def finish(self, full_text: str) -> None:
        if full_text.startswith(self._printed):
            self._write(full_text[len(self._printed) :])
        else:
            self._write("\n" + full_text)
        self._out.write("\n")
        self._out.flush()

    def break_off(self) -> None:
        if self._printed:
            self._out.write("\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._printed += text


def summary(result: AskQuestion.Result) -> str:
    """The last line: how fast, where it was computed, and what the answer saw."""
    metrics, context = result.metrics, result.context
    version = f"{context.version.stream}@{context.version.epoch}.{context.version.n}"
    speed = f"{metrics.decode_tok_s:.1f} tok/s" if metrics.decode_tok_s > 0 else "- tok/s"
    first = f"{metrics.ttft_ms:.0f} ms" if metrics.ttft_ms > 0 else "-"
    where = computed_where(metrics)
    energy = f", {metrics.energy_j:.1f} J" if metrics.energy_j > 0 else ""
    return (
        f"[TTFT {first}, {speed}, {metrics.generated_tokens} tokens{energy}, "
        f"{result.finish_reason}; "
        f"{where}; saw {context.frames} frames, {version}; answer {result.answer_id}]"
    )


def computed_where(metrics: Metrics) -> str:
    """Path and engines; both of a handoff."""
    if not metrics.engine:
        return "on no engine"
    before = metrics.prefill_engine
    handed = f"{before} -> " if before and before != metrics.engine else ""
    return f"{metrics.path} on {handed}{metrics.engine}".lstrip()


def exit_code(status: int, finish_reason: str) -> int:
    """The exit code of a finished goal; a cancellation of ours is the caller's to know."""
    if status == GoalStatus.STATUS_SUCCEEDED:
        return DEADLINE if finish_reason == "deadline" else OK
    return ERROR


@dataclass(frozen=True)
class _Event:
    """Something the main thread waits for: feedback, rejection, accepted or result."""

    kind: str
    value: Any


class _Asker(Node):
    """Hands everything that comes from the server to the main thread."""

    def __init__(self, server: str) -> None:
        super().__init__("ask", enable_rosout=False, start_parameter_services=False)
        server = server.rstrip("/")
        self.events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self.client = ActionClient(
            self,
            AskQuestion,
            f"{server}/ask",
            feedback_sub_qos_profile=QoSProfile(depth=_FEEDBACK_DEPTH),
        )
        self.rejections = self.create_subscription(
            Rejection,
            f"{server}/rejections",
            lambda message: self.events.put(_Event("rejection", message)),
            QoSProfile(depth=50),
        )

    def send(self, goal: AskQuestion.Goal) -> None:
        send_goal(
            self,
            self.client,
            goal,
            lambda message: self.events.put(_Event("feedback", message.feedback)),
            self._on_response,
        )

    def _on_response(self, future: Future) -> None:
        handle = future.result()
        self.events.put(_Event("accepted", handle))
        if handle.accepted:
            handle.get_result_async().add_done_callback(
                lambda done: self.events.put(_Event("result", done.result()))
            )

    def hears_rejections(self, timeout: float) -> None:
        """Wait until the server's rejections would reach us; without them there is no reason."""
        limit = time.monotonic() + timeout
        while self.count_publishers(self.rejections.topic_name) == 0:
            if time.monotonic() > limit:
                return
            time.sleep(0.01)


def main(args: list[str] | None = None) -> int:
    try:
        return _run(args)
    except KeyboardInterrupt:
        return CANCELLED


def _run(args: list[str] | None) -> int:
    given = sys.argv if args is None else ["", *args]
    try:
        for text in given:
            text.encode()  # what is not UTF-8: UnicodeEncodeError, a ValueError
        arguments = parser().parse_args(remove_ros_args(given)[1:])
        goal = goal_from(arguments)
    except (ValueError, AssertionError) as error:
        parser().error(str(error))
    rclpy.init(
        args=sys.argv if args is None else args, signal_handler_options=SignalHandlerOptions.NO
    )
    node = _Asker(arguments.node)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    # Spinning in another thread leaves the main one free for Ctrl-C.
    spinner = threading.Thread(target=_spin, args=(executor,), daemon=True)
    spinner.start()
    try:
        return _ask(node, goal, arguments.node, arguments.timeout)
    except KeyboardInterrupt:
        return CANCELLED
    finally:
        executor.shutdown()
        spinner.join(2.0)
        node.client.destroy()
        node.destroy_node()
        rclpy.try_shutdown()


def _spin(executor: SingleThreadedExecutor) -> None:
    try:
        executor.spin()
    except rclpy.executors.ExternalShutdownException:
        return


def _ask(node: _Asker, goal: AskQuestion.Goal, server: str, timeout: float) -> int:
    if not node.client.wait_for_server(timeout_sec=timeout):
        _complain(
            f"no action server {server.rstrip('/')}/ask within {timeout:g} s: is the node running, "
            "in this ROS_DOMAIN_ID, and is its name right (--node)?"
        )
        return NO_SERVER
    node.hears_rejections(_REASON_WAIT_S)
    node.send(goal)
    printer = AnswerPrinter(sys.stdout)
    handle: ClientGoalHandle | None = None
    rejection: Rejection | None = None
    try:
        while True:
            try:
                event = node.events.get(timeout=_POLL_S if handle else timeout)
            except queue.Empty:
                if handle is not None and node.client.server_is_ready():
                    continue
                printer.break_off()
                what = "has gone" if handle else f"did not react to the goal in {timeout:g} s"
                _complain(f"{server.rstrip('/')}/ask {what}")
                return NO_SERVER
            if event.kind == "feedback":
                printer.delta(event.value.sequence, event.value.delta)
            elif event.kind == "rejection" and _is_ours(event.value, goal):
                rejection = event.value
            elif event.kind == "accepted":
                handle = event.value
                if not event.value.accepted:
                    return _tell_rejection(node, goal, rejection)
            elif event.kind == "result":
                return _tell_result(printer, event.value)
    except KeyboardInterrupt:
        return _cancel(node, handle, printer)


def _tell_result(printer: AnswerPrinter, response: Any) -> int:
    result = response.result
    printer.finish(result.text)
    print(summary(result))
    code = exit_code(response.status, result.finish_reason)
    if code == ERROR:
        _complain(f"not answered ({result.finish_reason}): {result.error or 'the goal was ended'}")
    elif code == DEADLINE:
        _complain("the deadline came first: the text is partial")
    return code


def _tell_rejection(node: _Asker, goal: AskQuestion.Goal, heard: Rejection | None) -> int:
    limit = time.monotonic() + _REASON_WAIT_S
    while heard is None and (left := limit - time.monotonic()) > 0:
        try:
            event = node.events.get(timeout=left)
        except queue.Empty:
            break
        if event.kind == "rejection" and _is_ours(event.value, goal):
            heard = event.value
    if heard is None:
        _complain("rejected; the reason was not heard: see the node's log")
    else:
        _complain(f"rejected ({heard.reason}): {heard.text}")
    return REJECTED


def _cancel(node: _Asker, handle: ClientGoalHandle | None, printer: AnswerPrinter) -> int:
    if handle is None:
        return CANCELLED
    handle.cancel_goal_async()
    limit = time.monotonic() + _CANCEL_WAIT_S
    while (left := limit - time.monotonic()) > 0:
        try:
            event = node.events.get(timeout=left)
        except queue.Empty:
            break
        if event.kind == "result":
            if event.value.status == GoalStatus.STATUS_SUCCEEDED:
                return _tell_result(printer, event.value)  # it was complete already
            printer.finish(event.value.result.text)
            print(summary(event.value.result))
            break
    _complain("cancelled")
    return CANCELLED


def _is_ours(rejection: Rejection, goal: AskQuestion.Goal) -> bool:
    # Rejections carry no goal id; the node may have filled in the only stream.
    return rejection.what == "question" and goal.stream in ("", rejection.stream)


def _complain(text: str) -> None:
    sys.stdout.flush()
    print(f"ask: {text}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
