"""Running a node's callbacks in the background, and stopping on a signal."""

from __future__ import annotations

import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from rclpy.exceptions import InvalidHandle
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor

from .parameters import MAX_PENDING_QUESTIONS

if TYPE_CHECKING:
    from .node import EdgeVlmNode  # which imports this module

_OTHER_CALLBACKS = 8
_LAST_RESULTS_S = 0.3


def make_executor(node: EdgeVlmNode) -> MultiThreadedExecutor:
    """An executor with a thread for every answer and some for the rest.

    Threads are started when they are needed, so the large number costs nothing.
    """
    executor = MultiThreadedExecutor(
        num_threads=MAX_PENDING_QUESTIONS + _OTHER_CALLBACKS, context=node.context
    )
    executor.add_node(node)
    return executor


@contextmanager
def spin_in_background(node: EdgeVlmNode) -> Iterator[MultiThreadedExecutor]:
    """Spin ``node`` in a thread of its own while the ``with`` block runs.

    An exception in a callback is logged and counted; it does not end the node.
    """
    executor = make_executor(node)
    stopping = threading.Event()

    def spin() -> None:
        while node.context.ok() and not stopping.is_set():
            try:
                executor.spin_once()
            except ExternalShutdownException:
                return
            except InvalidHandle:
                continue  # an entity was destroyed while the executor was about to wait for it
            except Exception:
                if stopping.is_set():
                    return
                node.callback_errors += 1
                node.get_logger().error(f"error in a callback:\n{traceback.format_exc()}")

    thread = threading.Thread(target=spin, name="ros", daemon=True)
    thread.start()
    try:
        yield executor
    finally:
        # The executor sends results after their goals have ended.
        time.sleep(_LAST_RESULTS_S)
        stopping.set()
        executor.wake()
        thread.join()
        # Jazzy's executor frees what its running callbacks still use: let them end first.
        executor._executor.shutdown(wait=True)
        executor.shutdown(timeout_sec=5.0)


class StopSignals:
    """Waits for SIGINT or SIGTERM. A second signal acts as it would without us."""

    def __init__(self) -> None:
        # A socket that the C signal handler writes to: unlike a lock or an event it cannot miss a
        # signal that arrives while waiting begins.
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before = {number: signal.getsignal(number) for number in self._numbers()}
        self._wakeup_before = -1

    def __enter__(self) -> StopSignals:
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno())
        for number in self._numbers():
            signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def wait(self) -> None:
        """Only in the main thread, where Python runs signal handlers."""
        while self._reader.recv(1)[0] not in self._numbers():
            pass  # another signal that somebody handles in Python

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @staticmethod
    def _numbers() -> tuple[signal.Signals, ...]:
        return (signal.SIGINT, signal.SIGTERM)
