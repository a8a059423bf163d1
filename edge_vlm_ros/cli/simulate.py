"""`ros2 run edge_vlm_ros simulate`: will my board do? The runtime on a simulated machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from edge_vlm_ros.runtime.config import ConfigError
from edge_vlm_ros.simulation.profile import Profile, ProfileError
from edge_vlm_ros.simulation.report import comparison, verdict
from edge_vlm_ros.simulation.result import SimulationResult
from edge_vlm_ros.simulation.settings import Limits
from edge_vlm_ros.simulation.simulator import SimulationError, simulate
from edge_vlm_ros.simulation.workload import Workload, burst, live

from .numbers import whole_number
from .picture_file import picture_file
from .simulate_picture import draw_results
from .simulate_profile import read_profile

_EPILOG = """example: ros2 run edge_vlm_ros simulate --profile rk3588 --streams 2 --fps 1
--questions-per-minute 6 --policy sdep,single:cpu
Policies: sdep, single:ENGINE, batched:ENGINE, idle_first, isolated, round_robin, and
serial:ENGINE, which does nothing while anything else is being done."""


def main(args: list[str] | None = None) -> int:
    arguments = _parser().parse_args(args)
    try:
        profile = read_profile(arguments.profile)
        _check_history(arguments, profile)
        workload = _workload(arguments)
        results = _simulate_all(arguments, profile, workload)
    except (ConfigError, ProfileError, SimulationError, ValueError, OSError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    _print_report(profile, workload, results)
    return 0 if not arguments.picture else _write_picture(arguments.picture, profile, results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ros2 run edge_vlm_ros simulate",
        description="Let cameras and questions loose on a simulated machine and compare policies.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--profile",
        default="rk3588",
        help="a profile of config/profiles (rk3588, qcs6490, m4max), the path of another one, the "
        "path of a calibration's JSON, or `measured` for this machine's newest calibration",
    )
    add("--policy", default="sdep", metavar="NAME[,NAME...]", help="what is compared")
    add("--objective", choices=("completion", "first_token"), default="completion")
    add("--streams", type=whole_number(1), default=2, metavar="N")
    add("--fps", type=float, default=1.0, help="of each stream")
    add("--questions-per-minute", type=float, default=6.0, metavar="N", help="on all streams")
    add("--answer-tokens", type=whole_number(1), default=64, metavar="N", help="on average")
    add("--prompt-tokens", type=whole_number(1), default=24, metavar="N", help="of a question")
    add("--duration", type=float, default=300.0, metavar="S", help="simulated seconds")
    add("--seed", type=int, default=0, help="of the questions")
    add(
        "--burst",
        action="store_true",
        help="instead of a live stream: 8 frames and 4 questions for each stream, all at once, "
        "answers of exactly --answer-tokens",
    )
    add("--max-frames", type=whole_number(2), default=12, metavar="N", help="that a history holds")
    add("--max-pending", type=whole_number(1), default=8, metavar="N", help="questions at a time")
    add("--ingest-engine", default="", metavar="NAME", help="computes the frames at first")
    add(
        "--picture",
        type=picture_file,
        metavar="FILE.png",
        default=Path("simulation.png"),
        nargs="?",
        help="where to draw what happened (default: simulation.png); without a name, nowhere",
    )
    return parser


def _check_history(arguments: argparse.Namespace, profile: Profile) -> None:
    """Raises SimulationError for frames that the model has no room for."""
    needed = arguments.max_frames * profile.model.frame_tokens
    if needed >= profile.model.context_tokens:
        raise SimulationError(
            f"--max-frames {arguments.max_frames}: a history of so many frames, "
            f"{profile.model.frame_tokens} tokens each, needs {needed} tokens and more, but "
            f"model.context_tokens of {profile.name} is {profile.model.context_tokens}: lower "
            "--max-frames"
        )


def _workload(arguments: argparse.Namespace) -> Workload:
    if arguments.burst:
        return burst(
            streams=arguments.streams,
            answer_tokens=arguments.answer_tokens,
            prompt_tokens=arguments.prompt_tokens,
        )
    return live(
        streams=arguments.streams,
        fps=arguments.fps,
        questions_per_minute=arguments.questions_per_minute,
        duration_s=arguments.duration,
        answer_tokens=arguments.answer_tokens,
        prompt_tokens=arguments.prompt_tokens,
        seed=arguments.seed,
    )


def _simulate_all(
    arguments: argparse.Namespace, profile: Profile, workload: Workload
) -> list[SimulationResult]:
    limits = Limits(
        max_frames=arguments.max_frames,
        keep_frames=max(1, arguments.max_frames // 2),
        max_pending_questions=max(arguments.max_pending, _at_once(workload)),
        max_pending_frames=arguments.max_frames if arguments.burst else 4,
        ingest_engine=arguments.ingest_engine,
        objective=arguments.objective,
    )
    policies = [policy.strip() for policy in arguments.policy.split(",")]
    return [simulate(profile, workload, policy, limits) for policy in policies]


def _at_once(workload: Workload) -> int:
    """Questions that come together must not refuse each other."""
    return 0 if workload.duration_s else len(workload.questions)


def _print_report(
    profile: Profile, workload: Workload, results: Sequence[SimulationResult]
) -> None:
    print(f"{profile.name}: {profile.description}")
    if profile.assumptions:
        total = len(profile.assumptions) + len(profile.sources)
        print(
            f"Built from published figures: {len(profile.assumptions)} of {total} numbers are "
            "assumptions, marked in its file."
        )
    kind = f"over {workload.duration_s:.0f} s" if workload.duration_s else "all at once"
    print(
        f"{len(workload.streams)} streams, {len(workload.frames)} frames and "
        f"{len(workload.questions)} questions {kind}. Times in seconds: half of all / 95 % of all "
        "take no longer.\n"
    )
    print(comparison(results) + "\n")
    for result in results:
        print("\n".join(verdict(result, profile, workload)))


def _write_picture(path: Path, profile: Profile, results: Sequence[SimulationResult]) -> int:
    try:
        draw_results(profile.description, results, path)
    except ImportError:
        print("simulate: no picture without matplotlib: pip install matplotlib", file=sys.stderr)
        return 0
    except OSError as error:
        print(f"simulate: {path}: {error}", file=sys.stderr)
        return 2
    print(f"\nPicture: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
