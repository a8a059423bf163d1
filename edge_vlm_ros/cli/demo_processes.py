"""The processes of the demonstration: the node and two cameras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edge_vlm_ros.ros.share import share_directory

_STOP_S = 10.0


@dataclass(frozen=True)
class Camera:
    """One demo camera: the stream it feeds and what it films."""

    stream: str
    width: int
    height: int
    seed: int
    fps: float

    def arguments(self) -> list[str]:
        values = {n: getattr(self, n) for n in ("width", "height", "seed", "fps")}
        parameters = [f"{name}:={value}" for name, value in values.items()]
        remaps = [f"__ns:=/{self.stream}", f"__node:={self.stream}_camera"]
        return [x for p in parameters for x in ("-p", p)] + [x for r in remaps for x in ("-r", r)]


@contextmanager
def demo_processes(
    cameras: tuple[Camera, ...], log: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the node with config/demo.yaml and the cameras; stop them at the end.

    What they print goes to the file ``log``.
    """
    parameters = share_directory() / "config" / "demo.yaml"
    commands = [_python("edge_vlm_ros.cli.edge_vlm", ["--params-file", str(parameters)])]
    commands += [_python("edge_vlm_ros.cli.demo_camera", camera.arguments()) for camera in cameras]
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        yield [stack.enter_context(_running(command, output)) for command in commands]


def _python(module: str, ros_arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", module, "--ros-args", *ros_arguments]


@contextmanager
def _running(command: list[str], output: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
