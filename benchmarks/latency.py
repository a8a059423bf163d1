"""From a camera's publish call to the frame's place in the history, at 640x480."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from unittest import mock

import rclpy

from edge_vlm_ros.ros.node import EdgeVlmNode
from edge_vlm_ros.ros.spinning import spin_in_background
from edge_vlm_ros.runtime.messages import FrameArrived
from edge_vlm_ros.runtime.stream import Drop, StreamState

FPS = 10.0


@dataclass(frozen=True)
class LatencyResult:
    """Milliseconds from the stamp taken before publish() to the return of register()."""

    frames: int
    p50_ms: float
    p95_ms: float
    longest_ms: float

    def row(self) -> str:
        return (
            f"| 640x480 rgb8, {FPS:g} Hz | {self.frames} | {self.p50_ms:.1f} | "
            f"**{self.p95_ms:.1f}** | {self.longest_ms:.1f} |"
        )


HEADER = "| camera | frames | p50, ms | p95, ms | longest, ms |\n|---|---|---|---|---|"


def measure_latency(seconds: float) -> LatencyResult:
    """Run the node in this process and a demo camera in another one; frames are encoded and
    ingested meanwhile as in normal use."""
    latencies: list[float] = []
    register = StreamState._register

    def timed(stream: StreamState, frame: FrameArrived) -> list[Drop]:
        drops = register(stream, frame)
        latencies.append((time.time_ns() - frame.stamp_ns) / 1e6)
        return drops

    rclpy.init(args=_ros_arguments())
    try:
        with mock.patch.object(StreamState, "_register", timed):
            node = EdgeVlmNode()
            with spin_in_background(node), _camera():
                if not (node.change("configure") and node.change("activate")):
                    raise RuntimeError("the node could not be configured and activated")
                time.sleep(seconds)
                node.close()
            node.destroy_node()
    finally:
        rclpy.try_shutdown()
    # The first frames find cold code on both sides.
    latencies = latencies[int(FPS) :]
    if len(latencies) < 20:
        raise RuntimeError(f"only {len(latencies)} frames arrived in {seconds:g} s")
    cuts = statistics.quantiles(latencies, n=20)
    return LatencyResult(len(latencies), statistics.median(latencies), cuts[18], max(latencies))


def _ros_arguments() -> list[str]:
    parameters = {
        "streams": "[camera]",
        "camera.image_topic": "/camera/image_raw",
        "camera.qos.reliability": "reliable",
    }
    return ["--ros-args", *(x for k, v in parameters.items() for x in ("-p", f"{k}:={v}"))]


class _camera:
    """A demo camera in a process of its own."""

    def __enter__(self) -> None:
        arguments = ["-p", f"fps:={FPS}", "-r", "__ns:=/camera"]
        command = [sys.executable, "-m", "edge_vlm_ros.cli.demo_camera", "--ros-args", *arguments]
        self._process = subprocess.Popen(command)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
