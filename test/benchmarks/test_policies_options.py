"""The policies benchmark finds out at once where nothing can be written."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import policies, policies_report, policies_setup
from benchmarks.policies_options import add_policies_options, run_policies


def run(*options: str | Path) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    add_policies_options(parser)
    arguments = parser.parse_args(["--quick", *map(str, options)])
    run_policies(arguments, "a machine")


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, eight_cores: None) -> list[policies.Plan]:
    """The plans that would have been measured."""
    made: list[policies.Plan] = []

    def measure(model: Any, plan: policies.Plan, *_: Any) -> None:
        made.append(plan)

    monkeypatch.setattr(policies, "measure_policies", measure)
    monkeypatch.setattr(policies, "describe", lambda *_: [])
    monkeypatch.setattr(policies_setup, "endless_model", lambda name: None)
    monkeypatch.setattr(policies_report, "report", lambda runs: "")
    return made


def test_folders_are_there_before_anything_is_measured(
    plans: list[policies.Plan], tmp_path: Path
) -> None:
    traces, results = tmp_path / "a" / "traces", tmp_path / "b" / "results.json"
    run("--traces", traces, "--results", results)
    assert [plan.traces for plan in plans] == [traces]
    assert list(traces.iterdir()) == []
    assert "a machine" in results.read_text()


@pytest.mark.parametrize("option", ["--traces", "--results"])
def test_a_folder_that_cannot_be_is_told_at_once(
    plans: list[policies.Plan], tmp_path: Path, option: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        run(option, tmp_path / "file" / "traces" / "x")
    assert f"{option}: nothing can be written to the folder {tmp_path / 'file'}" in str(ended.value)
    assert plans == []
