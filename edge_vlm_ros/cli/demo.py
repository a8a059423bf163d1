"""`ros2 run edge_vlm_ros demo`: two cameras, six questions, answers beside the truth.

Ends by itself; exit code 0 only if all six answers were right.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor

from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.demo.questions import Question

from .ask import computed_where
from .demo_client import CameraView, DemoClient
from .demo_picture import Scored, save_picture
from .demo_processes import Camera, demo_processes

CAMERAS = (
    Camera("table", width=640, height=480, seed=7, fps=2.0),
    Camera("shelf", width=224, height=224, seed=11, fps=2.0),
)


class Planned(NamedTuple):
    """A question to ask after watching for some seconds; ``asked`` says where it is answered."""

    stream: str
    kind: str
    seconds: float
    asked: AskQuestion.Goal


# config/demo.yaml has two engines: cpu ingests the table, second (another process) the shelf.
AGENDA = (
    Planned("table", "describe", 2.0, AskQuestion.Goal()),
    Planned("shelf", "count", 1.0, AskQuestion.Goal()),
    Planned("table", "where", 2.0, AskQuestion.Goal(engine="second", path="import")),
    Planned("shelf", "go", 3.0, AskQuestion.Goal(engine="cpu", path="replay")),
    Planned("table", "change", 3.0, AskQuestion.Goal(engine="second", prefill_engine="cpu")),
    Planned("shelf", "was", 2.0, AskQuestion.Goal(engine="cpu", path="import")),
)
_READY_S = 120.0
_ANSWER_S = 60.0
_STOP_S = 5.0
_SEEN_FRAMES = 6
_ATTEMPTS = 5


def main(args: list[str] | None = None) -> int:
    arguments = _parser().parse_args(args)
    log = Path(tempfile.gettempdir()) / f"edge_vlm_demo_{os.getpid()}.log"
    print(f"Starting the node and two cameras (their log: {log})", flush=True)
    rclpy.init(args=[])
    client = DemoClient(tuple(camera.stream for camera in CAMERAS))
    executor = SingleThreadedExecutor()
    executor.add_node(client)
    spinner = threading.Thread(target=_spin, args=(executor,), daemon=True)
    spinner.start()
    try:
        with demo_processes(CAMERAS, log) as processes:
            _wait_until_ready(client, processes)
            answers = _run_agenda(client, arguments.seed)
        save_picture(arguments.picture, answers)
        return _report(answers, arguments.picture)
    except (RuntimeError, TimeoutError) as error:
        print(f"demo: {error}\nThe end of {log}:\n{_tail(log)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        executor.shutdown()
        spinner.join(_STOP_S)
        client.destroy_node()
        rclpy.try_shutdown()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ros2 run edge_vlm_ros demo", description=__doc__)
    parser.add_argument(
        "--picture", type=Path, default=Path("demo.png"), help="to write (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=3, help="of the questions")
    return parser


def _spin(executor: SingleThreadedExecutor) -> None:
    try:
        executor.spin()
    except ExternalShutdownException:
        return


def _wait_until_ready(client: DemoClient, processes: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + _READY_S
    while not client.ready():
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended with exit code {process.returncode}")
        if time.monotonic() > end:
            raise TimeoutError(f"the node did not publish a frame in {_READY_S:g} s")
        time.sleep(0.1)


def _run_agenda(client: DemoClient, seed: int) -> list[Scored]:
    rng = random.Random(seed)
    start = time.monotonic()
    answers = []
    for planned in AGENDA:
        time.sleep(planned.seconds)
        for _ in range(_ATTEMPTS):
            print(f"\n[{time.monotonic() - start:4.1f} s] ", end="")
            scored = _ask(client, client.views[planned.stream], planned, rng)
            if scored is not None:
                answers.append(scored)
                break
            time.sleep(1.0)
        else:
            raise RuntimeError(
                f"the table of {planned.stream} allowed no question of the kind {planned.kind!r}"
            )
    return answers


def _ask(
    client: DemoClient, view: CameraView, planned: Planned, rng: random.Random
) -> Scored | None:
    """Ask one question; None when it has no definite answer in what the answer saw."""
    question = _question(view, planned.kind, rng)
    if question is None:
        print(f"{view.stream}: no {planned.kind!r} question fits what is on the table, waiting")
        return None
    print(f"{view.stream}\n  Q: {question.text}\n  A: ", end="", flush=True)
    goal = planned.asked
    goal.stream, goal.question = view.stream, question.text
    result = client.ask(goal, _print_delta, _ANSWER_S)
    frames = view.frames_of(result.context)
    truth = view.table.truth(question, frames.start, frames.stop)
    metrics = result.metrics
    figures = f"TTFT {metrics.ttft_ms:.0f} ms, {metrics.decode_tok_s:.0f} tok/s"
    if truth is None:
        print(
            "\n  not scored: for the frames it saw, the true answer is not defined (an ambiguous "
            "name, say); asking another"
        )
        return None
    verdict = "right" if result.text == truth else "WRONG"
    where = computed_where(metrics)
    seen = f"saw {result.context.frames} frames ({frames.start} to {frames.stop - 1})"
    print(f"\n  T: {truth}\n  {verdict}; {figures}, {where}; {seen}")
    return Scored(
        stream=view.stream,
        question=question.text,
        answer=result.text,
        truth=truth,
        pictures=view.pictures(frames),
        frames_seen=seen,
        where=where,
        ttft_ms=metrics.ttft_ms,
        decode_tok_s=metrics.decode_tok_s,
    )


def _print_delta(delta: str) -> None:
    print(delta, end="", flush=True)


def _question(view: CameraView, kind: str, rng: random.Random) -> Question | None:
    """A question about the last frames in one of the wordings the model was trained on."""
    newest = view.newest
    return view.table.ask_about(max(0, newest + 1 - _SEEN_FRAMES), newest + 1, rng, kind)


def _report(answers: list[Scored], picture: Path) -> int:
    right = sum(answer.right for answer in answers)
    print(f"\n{right} of {len(answers)} answers are right. Frames and answers: {picture.resolve()}")
    print(
        """
Ask your own, in three terminals. In each first: . tools/setup/env.sh; export ROS_DOMAIN_ID=42
(any number up to 101, the same in all three):
  python -m edge_vlm_ros.cli.edge_vlm --ros-args --params-file config/demo.yaml
  python -m edge_vlm_ros.cli.demo_camera --ros-args -r __ns:=/table
  python -m edge_vlm_ros.cli.ask "What do you see?" --stream table
With a ROS 2 installation: ros2 launch edge_vlm_ros demo.launch.py, then ros2 run edge_vlm_ros ask.
The demo model knows drawn table-top scenes and the questions it was trained on, nothing else."""
    )
    return 0 if right == len(answers) else 1


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-20:])


if __name__ == "__main__":
    raise SystemExit(main())
