"""What the policies benchmark measured, as Markdown.

    python -m benchmarks.policies_report FILE...

Several files are taken together.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from .policies_results import Key, Run, percentile, read_runs

SERIAL = "serial"
WIDE = "batched:all_cores"
"""One engine on the cores of both."""
SINGLE_GOAL, ISOLATED_GOAL, STREAMING_GOAL = 1.25, 1.4, 2.0
NEARLY = 0.97
"""A policy that is within 3 % of another is as good."""

_HEAD = (
    "| policy | runs | total s | tok/s | TTFT p50 / p95 ms | answers by engine | "
    "imports full, delta | replayed tokens | handoffs | MB imported | "
    "PSS / RSS here, servers (MB) |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
_LIVE_HEAD = (
    "| policy | runs | tok/s | TTFT p50 / p95 ms | complete p50 / p95 ms | refused, unfinished | "
    "frames lost | answers by engine | imports full, delta | replayed tokens | handoffs | "
    "PSS / RSS here, servers (MB) |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(run: Run) -> str:
    """One run in one line."""
    key = run.key
    where = f"{key.workload} {key.load:g}" if key.load else key.workload
    text = (
        f"{where} #{key.number} {key.policy}: {run.total_s:.2f} s, {run.tokens_per_s:.1f} tok/s, "
        f"TTFT {_p50_p95(run.ttft_ms)} ms, {_counts(run.answers)}; imports {run.full_imports} + "
        f"{run.delta_imports}, replayed {run.replayed_tokens}, handoffs {run.handoffs}"
    )
    if run.rejected or run.unfinished:
        text += f", refused {run.rejected}, unfinished {run.unfinished}"
    if key.policy == "sdep":
        text += (
            f", ingested on {_engines(run)}; predictions off by {100 * run.first_token_error:.0f} "
            f"and {100 * run.finished_error:.0f} %, {run.decision_mean_us:.0f} us a decision"
        )
    return text


def report(runs: Iterable[Run]) -> str:
    """Tables for every setup, model and load, each with what was to be reached."""
    parts = []
    ordered = sorted(runs, key=lambda run: run.key)
    for (setup, model, kv, workload, load), found in groupby(ordered, key=lambda r: _case(r.key)):
        group = list(found)
        title = f"### {setup}, {model}, {kv} KV, {workload}"
        if workload == "live":
            first = group[0]
            title += (
                f" at load {load:g} ({first.question_rate_hz:.2f} questions/s, "
                f"{first.fps:.2f} frames/s of each stream)"
            )
        by_policy = _by_policy(group)
        rows = [_row(policy, each, workload) for policy, each in by_policy.items()]
        head = _HEAD if workload == "burst" else _LIVE_HEAD
        goals = burst_goals(by_policy) if workload == "burst" else live_goals(by_policy)
        parts.append("\n".join([title, "", head, *rows, "", *(f"- {goal}" for goal in goals)]))
    return "\n\n".join(parts)


# ------------------------------------------------------------------------------- goals
def burst_goals(by_policy: dict[str, list[Run]]) -> list[str]:
    """Ratios of sdep to what it is compared with. Only what was measured is told."""
    if "sdep" not in by_policy:
        return []
    sdep = _total(by_policy["sdep"])
    found = []
    batched = _fastest(by_policy, lambda policy: policy.startswith("batched:") and policy != WIDE)
    if batched:
        found.append(_goal(f"best single engine with batching ({batched})",
                           _total(by_policy[batched]) / sdep, SINGLE_GOAL))  # fmt: skip
    if "isolated" in by_policy:
        ratio = _total(by_policy["isolated"]) / sdep
        found.append(_goal("isolated", ratio, ISOLATED_GOAL))
    if SERIAL in by_policy:
        ratio = _total(by_policy[SERIAL]) / sdep
        found.append(_goal("serial", ratio, STREAMING_GOAL))
        if batched:
            ratio = _total(by_policy[SERIAL]) / _total(by_policy[batched])
            found.append(f"{batched} against serial: {ratio:.2f} times (for information)")
    return found + _against_all(by_policy, _total)


def live_goals(by_policy: dict[str, list[Run]]) -> list[str]:
    if "sdep" not in by_policy:
        return []
    return _against_all(by_policy, lambda runs: 1.0 / _throughput(runs))


def _against_all(
    by_policy: dict[str, list[Run]], slowness: Callable[[Sequence[Run]], float]
) -> list[str]:
    """Whether any other policy is better in throughput or in p95 of TTFT."""
    others = [policy for policy in by_policy if policy not in ("sdep", WIDE)]
    if not others:
        return []
    found = []
    for name, measure in (("throughput", slowness), ("p95 TTFT", _p95)):
        best = min(others, key=lambda policy: measure(by_policy[policy]))
        ratio = measure(by_policy[best]) / measure(by_policy["sdep"])
        verdict = "better" if ratio >= 1.0 else "within 3 %" if ratio >= NEARLY else "WORSE"
        found.append(f"{name}: sdep is {ratio:.3f} times as good as the best other, {best}: "
                     f"{verdict}")  # fmt: skip
    return found


def _goal(than: str, ratio: float, goal: float) -> str:
    verdict = "reached" if ratio >= goal else "NOT reached"
    return f"sdep against {than}: {ratio:.2f} times faster, goal {goal:g}: {verdict}"


# ------------------------------------------------------------------------------- tables
def _row(policy: str, runs: Sequence[Run], workload: str) -> str:
    ttft = _p50_p95(_all(runs, lambda run: run.ttft_ms))
    rate = _spread([run.tokens_per_s for run in runs], 1)
    engines = _counts(_summed(runs))
    moved = f"{_mean(runs, lambda r: r.full_imports)}, {_mean(runs, lambda r: r.delta_imports)}"
    replayed, handed = (
        _mean(runs, lambda r: r.replayed_tokens),
        _mean(runs, lambda r: r.handoffs),
    )
    if workload == "burst":
        cells = [
            policy, str(len(runs)), _spread([run.total_s for run in runs], 2), rate, ttft, engines,
            moved, replayed, handed, f"{statistics.mean(r.imported_bytes for r in runs) / 1e6:.1f}",
            _memory(runs),
        ]  # fmt: skip
    else:
        complete = _p50_p95(_all(runs, lambda run: run.complete_ms))
        lost = f"{sum(r.rejected for r in runs)}, {sum(r.unfinished for r in runs)}"
        dropped, frames = sum(r.frames_dropped for r in runs), sum(r.frames for r in runs)
        cells = [
            policy, str(len(runs)), rate, ttft, complete, lost, f"{dropped} of {dropped + frames}",
            engines, moved, replayed, handed, _memory(runs),
        ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _case(key: Key) -> tuple[str, str, str, str, float]:
    return key.setup, key.model, key.kv_type, key.workload, key.load


def _by_policy(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """sdep first, then the fastest first."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.key.policy, []).append(run)
    order = sorted(found, key=lambda policy: (policy != "sdep", -_throughput(found[policy])))
    return {policy: found[policy] for policy in order}


def _fastest(by_policy: dict[str, list[Run]], counts: Callable[[str], bool]) -> str:
    names = [policy for policy in by_policy if counts(policy)]
    return min(names, key=lambda policy: _total(by_policy[policy]), default="")


def _total(runs: Sequence[Run]) -> float:
    return statistics.median(run.total_s for run in runs)


def _throughput(runs: Sequence[Run]) -> float:
    return statistics.median(run.tokens_per_s for run in runs)


def _p95(runs: Sequence[Run]) -> float:
    """Over the answers of all runs."""
    return percentile(_all(runs, lambda run: run.ttft_ms), 95)


def _all(runs: Sequence[Run], values: Callable[[Run], Sequence[float]]) -> list[float]:
    return [value for run in runs for value in values(run)]


def _p50_p95(values: Sequence[float]) -> str:
    return f"{percentile(values, 50):.0f} / {percentile(values, 95):.0f}" if values else "-"


def _spread(values: Sequence[float], digits: int) -> str:
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) < 2:
        return middle
    return f"{middle} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def _mean(runs: Sequence[Run], value: Callable[[Run], float]) -> str:
    return f"{statistics.mean(value(run) for run in runs):.3g}"


def _summed(runs: Sequence[Run]) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in runs:
        for engine, n in run.answers.items():
            found[engine] = found.get(engine, 0) + n
    return found


def _counts(answers: Mapping[str, int]) -> str:
    return ", ".join(f"{engine} {n}" for engine, n in sorted(answers.items()))


def _engines(run: Run) -> str:
    return ", ".join(sorted(set(run.ingest_engines.values())))


def _memory(runs: Sequence[Run]) -> str:
    """The largest of all runs."""
    here = max((r.memory for r in runs), key=lambda m: m.node_pss)
    servers = max((r.memory for r in runs), key=lambda m: m.servers_pss)
    return (
        f"{here.node_pss / 1e6:.0f} / {here.node_rss / 1e6:.0f}, "
        f"{servers.servers_pss / 1e6:.0f} / {servers.servers_rss / 1e6:.0f}"
    )


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    print(report(read_runs(Path(argument) for argument in sys.argv[1:])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
