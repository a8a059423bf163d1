"""What the policies benchmark runs on, what it keeps, and what it makes of its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.policies import all_policies
from benchmarks.policies_report import SERIAL, WIDE, burst_goals, line, live_goals, report
from benchmarks.policies_results import Key, Memory, Results, Run, read_runs
from benchmarks.policies_setup import parse_setup

KEY = Key("soc:10+5", "0.5b", "q8_0", "burst", 0.0, "sdep", 1)
RUN = Run(
    key=KEY,
    total_s=4.0,
    tokens=1024,
    ttft_ms=(500.0, 600.0, 700.0, 900.0),
    complete_ms=(3000.0, 4000.0),
    rejected=0,
    unfinished=0,
    frames=16,
    frames_dropped=0,
    answers={"cpu": 5, "rpc": 3},
    paths={"local": 5, "import": 3},
    full_imports=2,
    delta_imports=1,
    replayed_tokens=0,
    handoffs=0,
    imported_bytes=12_300_000,
    busy_s={"cpu": 3.9, "rpc": 3.0},
    ingest_engines={"camera_0": "cpu", "camera_1": "cpu"},
    memory=Memory(1_000_000_000, 900_000_000, 600_000_000, 550_000_000),
    decision_mean_us=100.0,
    decision_max_us=400.0,
    first_token_error=0.1,
    finished_error=0.2,
)


def of(policy: str, total_s: float, number: int = 1, **changes: object) -> Run:
    key = replace(KEY, policy=policy, number=number)
    return replace(RUN, key=key, total_s=total_s, **changes)  # type: ignore[arg-type]


def by_policy(*runs: Run) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.key.policy, []).append(run)
    return found


# ---------------------------------------------------------------- setups
def cores_of(text: str, n: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(n)))
    setup = parse_setup(text, "q8_0")
    return [*(engine.cpus for engine in setup.engines), setup.cpus]


def test_two_engines_like_a_soc_leave_one_core_to_everything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cores_of("soc", 16, monkeypatch) == [tuple(range(10)), tuple(range(10, 15)), (15,)]
    assert cores_of("soc:4+4", 16, monkeypatch) == [(0, 1, 2, 3), (4, 5, 6, 7), (15,)]
    assert cores_of("soc", 2, monkeypatch) == [(0,), (1,), ()]
    setup = parse_setup("soc", "q8_0")
    assert setup.wide is not None and setup.wide.cpus == (0, 1)
    assert [(e.device, e.repack) for e in setup.engines] == [("cpu", False), ("rpc", True)]
    assert not setup.wide.repack and parse_setup("rpc", "q8_0").engines[0].repack
    assert [e.device for e in parse_setup("cpus", "q8_0").engines] == ["cpu", "cpu"]


def test_a_gpu_gets_one_core_and_the_cpu_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores_of("cuda,cpu", 16, monkeypatch) == [(14,), tuple(range(14)), (15,)]
    setup = parse_setup("cuda:1,cpu", "f16")
    assert [(e.name, e.device, e.kv_type) for e in setup.engines] == [
        ("cuda", "cuda:1", "f16"),
        ("cpu", "cpu", "f16"),
    ]
    assert setup.wide is None and WIDE not in all_policies(setup)


@pytest.mark.parametrize("text", ["soc:10", "soc:0+1", "soc:2+1", "cpu", "cpu,cpu", "a,b,c"])
def test_setups_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="soc|devices"):
        parse_setup(text, "q8_0", cores=(0, 1))


def test_every_policy_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert set(all_policies(parse_setup("soc", "q8_0"))) == {
        "sdep", "batched:cpu", "batched:rpc", "single:cpu", "single:rpc", "isolated",
        "idle_first", "round_robin", SERIAL, WIDE,
    }  # fmt: skip


# ---------------------------------------------------------------- results
def test_what_was_done_is_read_back_and_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    results = Results(path)
    results.note(machine="some")
    results.add(RUN)
    results.add(of(SERIAL, 9.0))
    with path.open("a") as file:
        file.write('{"run": {"key":')  # the command was killed here
    again = Results(path)
    assert again.runs == [RUN, of(SERIAL, 9.0)] == read_runs([path])
    assert KEY in again and replace(KEY, number=2) not in again
    again.add(of("isolated", 8.0))
    assert Results(path).runs == [RUN, of(SERIAL, 9.0), of("isolated", 8.0)]


def test_live_loads_stay_relative_to_what_was_measured_first(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    results = Results(path)
    assert results.capacity("soc:10+5", "0.5b", "q8_0") is None
    results.add_capacity("soc:10+5", "0.5b", "q8_0", 2.5, 12.0)
    for known in (results, Results(path)):
        assert known.capacity("soc:10+5", "0.5b", "q8_0") == (2.5, 12.0)
        assert known.capacity("soc:10+5", "3b", "q8_0") is None
        assert known.capacity("soc:1+1", "0.5b", "q8_0") is None


# ---------------------------------------------------------------- goals
def test_goals_compare_median_times_with_the_best_batched_single_engine() -> None:
    found = by_policy(
        of("sdep", 4.0), of("sdep", 40.0, 2), of("sdep", 3.0, 3),
        of("batched:cpu", 5.2), of("batched:rpc", 9.0), of(WIDE, 1.0),
        of("single:cpu", 4.5), of("isolated", 5.0), of(SERIAL, 12.0),
    )  # fmt: skip
    goals = burst_goals(found)
    assert goals[0].endswith("(batched:cpu): 1.30 times faster, goal 1.25: reached")
    assert "isolated: 1.25 times faster, goal 1.4: NOT reached" in goals[1]
    assert "serial: 3.00 times faster, goal 2: reached" in goals[2]
    assert "throughput: sdep is 1.125 times as good as the best other, single:cpu" in goals[4]


def test_sdep_may_be_three_percent_worse_than_the_best_other() -> None:
    def verdicts(total_s: float, ttft_ms: float) -> list[str]:
        other = of("round_robin", total_s, ttft_ms=(ttft_ms,))
        found = by_policy(of("sdep", 4.0, ttft_ms=(100.0,)), other)
        return [goal.rsplit(": ", 1)[1] for goal in live_goals(found)]

    assert verdicts(4.1, 98.0) == ["better", "within 3 %"]
    assert verdicts(3.8, 99.0) == ["WORSE", "within 3 %"]
    assert live_goals(by_policy(of("isolated", 3.0))) == []


def test_the_report_has_a_table_for_each_case_with_sdep_first() -> None:
    live = replace(KEY, workload="live", load=0.8)
    text = report(
        [
            of("isolated", 3.0),
            of("sdep", 4.0),
            of("sdep", 5.0, 2),
            replace(RUN, key=live, rejected=3, unfinished=2, frames_dropped=4),
        ]
    )
    burst, live_part = text.split("\n\n### ")
    rows = [row for row in burst.splitlines() if row.startswith("| ")][1:]
    assert [row.split(" | ")[0] for row in rows] == ["| sdep", "| isolated"]
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[1:6] == [
        "2", "4.50 (4.00..5.00)", "230.4 (204.8..256.0)", "600 / 900", "cpu 10, rpc 6",
    ]  # fmt: skip
    assert cells[-1] == "900 / 1000, 550 / 600"
    assert "live at load 0.8" in live_part and "| 3, 2 | 4 of 20 |" in live_part
    for table in (burst, live_part):
        widths = {row.count("|") for row in table.splitlines() if row.startswith("|")}
        assert len(widths) == 1
    assert "refused 3, unfinished 2" in line(replace(RUN, rejected=3, unfinished=2))
