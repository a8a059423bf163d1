"""A comparison of policies in words: a table, and whether the machine will do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from .profile import Profile
from .result import SimulationResult, percentile
from .workload import Workload

KEPT_UP_PART = 0.99
"""Part of the frames that must enter the histories for cameras to count as kept up with."""

MOST_PERIODS = 4
"""A frame that can be asked about only when so many younger ones have come is late."""


def comparison(results: Sequence[SimulationResult]) -> str:
    """A table with a line for each policy. Times are median and 95th percentile in seconds."""
    machines = list(results[0].timelines)
    head = ["POLICY", "FRAMES LOST", "FRAME LAG", "FIRST TOKEN", "COMPLETE", "ANSWERS", "REFUSED"]
    head += ["TOK/S", "WAITING", *(f"{name.upper()} BUSY" for name in machines)]
    return _aligned([head, *(_row(result, machines) for result in results)])


def verdict(result: SimulationResult, profile: Profile, workload: Workload) -> list[str]:
    """Whether the machine will do under one policy, and what is in the way if not."""
    lines = [f"{result.policy}:"]
    if workload.duration_s:
        kept = keeps_up(result, workload)
        lines[0] += " keeps up with the cameras" if kept else " does NOT keep up with the cameras"
        lines.append(
            f"  {result.dropped_frames} of {result.frames} frames are lost, the others can be "
            f"asked about after {_seconds(result.ingestion_lag_s)}"
        )
        if not kept:
            lines.append(f"  {_bottleneck(result, profile, workload)}")
    if result.answers:
        lines.append(
            f"  answers begin after {_seconds(result.ttft_s)} and are complete after "
            f"{_seconds(result.total_s)}"
        )
    if result.rejected:
        lines.append(
            f"  {len(result.rejected)} of {len(result.rejected) + len(result.answers)} questions "
            f"are refused: {_why(result.rejected)}"
        )
    return lines


def _why(reasons: Sequence[str]) -> str:
    counts = Counter(reasons)
    texts = {"queue_full": "more are asked than are answered"}
    return ", ".join(texts.get(reason, reason) for reason, _ in counts.most_common())


def keeps_up(result: SimulationResult, workload: Workload) -> bool:
    """Whether (nearly) all frames enter the histories, and do so before many more have come."""
    periods = workload.duration_s * len(workload.streams) / max(1, result.frames)
    in_time = percentile(result.ingestion_lag_s, 95) <= MOST_PERIODS * periods
    return in_time and result.frames - result.dropped_frames >= KEPT_UP_PART * result.frames


def _row(result: SimulationResult, machines: Sequence[str]) -> list[str]:
    lost = result.dropped_frames / result.frames if result.frames else 0.0
    return [
        result.policy,
        f"{100 * lost:.0f} %",
        _pair(result.ingestion_lag_s),
        _pair(result.ttft_s),
        _pair(result.total_s),
        str(len(result.answers)),
        str(len(result.rejected)),
        f"{result.tokens_per_s:.1f}",
        f"{result.mean_backlog:.1f}",
        *(f"{100 * result.utilisation(name):.0f} %" for name in machines),
    ]


def _bottleneck(result: SimulationResult, profile: Profile, workload: Workload) -> str:
    busiest = max(result.timelines, key=result.utilisation)
    text = f"{busiest} is busy {100 * result.utilisation(busiest):.0f} % of the time"
    if busiest != profile.encoder:
        return f"{text}: fewer frames or questions, shorter answers or a smaller model are needed"
    (encode_s,) = profile.costs.encode_s.values()
    most = 1.0 / (encode_s * len(workload.streams))
    return f"{text}: it encodes at most {most:.2f} frames a second of each stream"


def _pair(values: Sequence[float]) -> str:
    return f"{_short(percentile(values, 50))} / {_short(percentile(values, 95))}"


def _seconds(values: Sequence[float]) -> str:
    middle, high = percentile(values, 50), percentile(values, 95)
    return f"{_short(middle)} s (95 % within {_short(high)} s)"


def _short(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
