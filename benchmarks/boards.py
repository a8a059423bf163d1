"""Tables of docs/simulator.md: three boards, every policy, next to the paper's headline figures.

    python -m benchmarks.boards

Simulated, with the profiles in config/profiles: the same numbers on any computer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_vlm_ros.simulation.profile import Profile, load_profile
from edge_vlm_ros.simulation.result import SimulationResult, percentile
from edge_vlm_ros.simulation.settings import Limits
from edge_vlm_ros.simulation.simulator import simulate
from edge_vlm_ros.simulation.workload import Workload, burst, live

_PROFILES = Path(__file__).resolve().parents[1] / "config" / "profiles"
_ALL_AT_ONCE = Limits(max_frames=8, keep_frames=4, max_pending_frames=8, max_pending_questions=8)


@dataclass(frozen=True)
class Board:
    """A profile and the live load that its best single engine can just about bear."""

    profile: str
    best: str
    fps: float
    questions_per_minute: float
    duration_s: float


BOARDS = (
    Board("rk3588", "cpu", 0.2, 12, 600),
    Board("qcs6490", "gpu", 0.05, 3, 900),
    Board("m4max", "gpu", 1.0, 60, 300),
)


def main() -> None:
    headlines = []
    for board in BOARDS:
        profile = load_profile(_PROFILES / f"{board.profile}.yaml")
        at_once = _all(profile, burst(), _ALL_AT_ONCE, board.best)
        stream = live(
            streams=2,
            fps=board.fps,
            questions_per_minute=board.questions_per_minute,
            duration_s=board.duration_s,
        )
        over_time = _all(profile, stream, Limits(), board.best)
        print(f"### {profile.description}\n")
        print("All at once: 2 streams, 8 frames and 4 questions each, 128 tokens an answer.\n")
        print(_burst_table(at_once) + "\n")
        print(
            f"Live: 2 streams, {board.fps:g} frames/s each, {board.questions_per_minute:g} "
            f"questions a minute ({len(stream.questions)} in {board.duration_s:.0f} s), 64 tokens "
            "an answer.\n"
        )
        print(_live_table(over_time) + "\n")
        headlines.append((board, at_once, over_time))
    print(_headline_table(headlines))


def _all(
    profile: Profile, workload: Workload, limits: Limits, best: str
) -> dict[str, SimulationResult]:
    engines = [engine.name for engine in profile.engines]
    policies = ["sdep", *(f"{kind}:{name}" for name in engines for kind in ("single", "batched"))]
    policies += ["idle_first", "isolated", "round_robin", f"serial:{best}"]
    return {policy: simulate(profile, workload, policy, limits) for policy in policies}


def _burst_table(results: dict[str, SimulationResult]) -> str:
    rows = [
        [
            policy,
            f"{result.end_s:.1f}",
            f"{result.tokens_per_s:.1f}",
            _pair(result.ttft_s),
            _pair(result.total_s),
            *(f"{100 * result.utilisation(name):.0f} %" for name in result.timelines),
        ]
        for policy, result in results.items()
    ]
    busy = [f"{name} busy" for name in results["sdep"].timelines]
    return _table(["policy", "all done, s", "tok/s", "TTFT, s", "complete, s", *busy], rows)


def _live_table(results: dict[str, SimulationResult]) -> str:
    rows = [
        [
            policy,
            f"{100 * result.dropped_frames / result.frames:.0f} %",
            _pair(result.ingestion_lag_s),
            _pair(result.ttft_s),
            _pair(result.total_s),
            f"{len(result.answers)} / {len(result.rejected)}",
            f"{result.mean_backlog:.1f}",
        ]
        for policy, result in results.items()
    ]
    head = ["policy", "frames lost", "frame lag, s", "TTFT, s", "complete, s"]
    return _table([*head, "answered / refused", "waiting"], rows)


def _headline_table(
    boards: list[tuple[Board, dict[str, SimulationResult], dict[str, SimulationResult]]],
) -> str:
    def ratios(other: str) -> list[str]:
        return [
            f"{_tokens_per_s(at_once, 'sdep') / _tokens_per_s(at_once, other):.2f}x"
            for _, at_once, _ in boards
        ]

    def changes(measure: str) -> list[str]:
        texts = []
        for board, _, over_time in boards:
            ours, theirs = (
                _measure(over_time[policy], measure) for policy in ("sdep", f"single:{board.best}")
            )
            texts.append(f"{100 * (ours / theirs - 1):+.0f} %")
        return texts

    serial = [
        f"{at_once[f'serial:{b.best}'].end_s / at_once['sdep'].end_s:.2f}x"
        for b, at_once, _ in boards
    ]
    rows = [
        ["tok/s, sdep to the best `single`", "1.196x", *ratios("single")],
        ["tok/s, sdep to the best `batched`", "-", *ratios("batched")],
        ["tok/s, sdep to `isolated`", "1.272x", *ratios("isolated")],
        ["all done, `serial` to sdep", "2.48x", *serial],
        ["p95 TTFT, live, sdep to `single`", "-76 %", *changes("ttft")],
        ["mean completion, live, sdep to `single`", "-72.7 %", *changes("complete")],
        ["questions waiting, live, sdep to `single`", "+35 %", *changes("waiting")],
    ]
    return _table(["", "paper", *(board.profile for board, _, _ in boards)], rows)


def _tokens_per_s(results: dict[str, SimulationResult], prefix: str) -> float:
    """The best of the policies whose names begin so."""
    return max(r.tokens_per_s for policy, r in results.items() if policy.startswith(prefix))


def _measure(result: SimulationResult, measure: str) -> float:
    if measure == "ttft":
        return percentile(result.ttft_s, 95)
    if measure == "complete":
        return sum(result.total_s) / len(result.total_s)
    return result.mean_backlog


def _pair(values: list[float] | tuple[float, ...]) -> str:
    return f"{percentile(values, 50):.2f} / {percentile(values, 95):.2f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
