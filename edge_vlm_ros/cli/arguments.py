"""Arguments of `ask` and the goal they make."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal, InvalidOperation

from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.ros.stamps import ns_to_stamp

from .numbers import seconds, whole_number

EXIT_CODES = """exit codes:
  0    answered (the model ended it, a --stop string came, or --max-tokens was reached)
  1    error: the goal was aborted, or cancelled by somebody else
  2    wrong arguments
  3    no node answered within --timeout, or it went away
  4    the question was rejected; the reason is printed
  5    the deadline came first: the text is partial
  130  cancelled with Ctrl-C; the partial text is printed
"""

PATHS = ("local", "import", "replay")

_VERSION = re.compile(r"(\d+)\.(\d+)\Z")
_UINT32_MAX = 2**32 - 1
_STAMP_END_S = 2**31
_LONGEST_S = 1e9


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="ros2 run edge_vlm_ros ask",
        description="Ask a question about what a camera saw and print the answer as it comes.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("question", help='e.g. "Where did the red cup go?"')
    add("--stream", default="", help="camera stream; may be left out when there is only one")
    add("--node", default="/edge_vlm", help="the node to ask (default: %(default)s)")
    time = seconds(_LONGEST_S)
    add("--timeout", type=time, default=10.0, metavar="S", help="seconds to wait for the node")
    add(
        "--max-tokens",
        type=whole_number(0, _UINT32_MAX),
        default=0,
        metavar="N",
        help="longest answer in tokens",
    )
    add("--deadline", type=time, default=0.0, metavar="S", help="seconds for the answer")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; repeatable")
    add("--commit", action="store_true", help="remember question and answer in the history")
    add(
        "--binding",
        default="registered",
        metavar="WHAT",
        help="what the answer sees: registered (the newest frame that arrived, default), published "
        "(the newest that can be answered at once), stamp:<seconds>, or version:<epoch>.<n>",
    )
    add("--engine", default="", metavar="NAME", help="engine that answers the question")
    add(
        "--prefill-engine",
        default="",
        metavar="NAME",
        help="another engine that computes the question and hands it over to --engine",
    )
    add(
        "--path",
        default="",
        choices=PATHS,
        help="how the engine gets what it lacks of the history: nothing is lacking (local), it "
        "takes it over from another engine (import), or computes it again (replay)",
    )
    add("--temperature", type=float, default=0.0, help="0: always the most likely token (default)")
    add("--top-k", type=whole_number(0, 2**31 - 1), default=0, help="0: off")
    add("--top-p", type=float, default=1.0, help="1: off")
    add("--min-p", type=float, default=0.0, help="0: off")
    add("--repeat-penalty", type=float, default=1.0, help="1: off")
    add(
        "--seed",
        type=whole_number(0, _UINT32_MAX - 1),  # llama.cpp's word for no seed is the greatest
        default=0,
        help="of the random choice with a temperature above 0",
    )
    return made


def goal_from(arguments: argparse.Namespace) -> AskQuestion.Goal:
    """The goal that the arguments describe. Raises ValueError with a text for the user."""
    goal = AskQuestion.Goal(
        stream=arguments.stream,
        question=arguments.question,
        max_tokens=arguments.max_tokens,
        stop=arguments.stop,
        deadline_s=arguments.deadline,
        commit=arguments.commit,
        engine=arguments.engine,
        prefill_engine=arguments.prefill_engine,
        path=arguments.path,
    )
    goal.sampling.temperature = arguments.temperature
    goal.sampling.top_k = arguments.top_k
    goal.sampling.top_p = arguments.top_p
    goal.sampling.min_p = arguments.min_p
    goal.sampling.repeat_penalty = arguments.repeat_penalty
    goal.sampling.seed = arguments.seed
    _bind(goal, arguments.binding)
    return goal


def _bind(goal: AskQuestion.Goal, binding: str) -> None:
    kind, _, value = binding.partition(":")
    version = _VERSION.match(value)
    if binding == "registered":
        goal.binding = AskQuestion.Goal.BIND_REGISTERED
    elif binding == "published":
        goal.binding = AskQuestion.Goal.BIND_PUBLISHED
    elif kind == "stamp":
        goal.binding = AskQuestion.Goal.BIND_STAMP
        try:
            # Not a float: it cannot hold the nanoseconds of today.
            goal.stamp = ns_to_stamp(int(Decimal(value) * 1_000_000_000))
        except (InvalidOperation, ValueError, OverflowError) as error:
            raise ValueError(
                f"--binding {binding}: {value!r} is no time in seconds below {_STAMP_END_S}"
            ) from error
    elif kind == "version" and version:
        if max(int(version[1]), int(version[2])) > _UINT32_MAX:
            raise ValueError(
                f"--binding {binding}: epoch and n are whole numbers from 0 to {_UINT32_MAX}"
            )
        goal.binding = AskQuestion.Goal.BIND_VERSION
        goal.version.epoch = int(version[1])
        goal.version.n = int(version[2])
    else:
        raise ValueError(
            f"--binding {binding}: use registered, published, stamp:<seconds> or "
            "version:<epoch>.<n>"
        )
