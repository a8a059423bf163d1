"""What happens when llama.cpp gives up, which must never be more than the docs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).resolve().parent / "abort_cases.py"
ABORTED = -6
GOES_ON = ["new server computes the same: True", "ended"]


def run(case: str) -> tuple[int, list[str], str]:
    """Exit code, lines printed and what went to stderr."""
    ended = subprocess.run(
        [sys.executable, CASES, case],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},
    )
    return ended.returncode, ended.stdout.splitlines(), ended.stderr


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("decode", ["engine told: True True", "its thread stays: True", "abandoned"]),
        ("load", ["load raised: CRASHED", "lost: True in the middle: True"]),
        ("context", ["context raised: CRASHED"]),
        ("export_range", ["export raised: CRASHED"]),
        ("import_range", ["import raised: CRASHED"]),
        ("free_context", ["free raised: CRASHED"]),
        ("free_model", ["free raised: CRASHED"]),
        ("close", ["lost: True", "abandoned"]),
        ("listing", ["listing raised: the RPC server ENDPOINT ended while it was asked"]),
    ],
)
def test_a_server_that_dies(case: str, expected: list[str]) -> None:
    """In the middle of each kind of native call the process lives, and another server works."""
    code, lines, stderr = run(case)
    told = []
    for line in lines:
        head, found, _ = line.partition("ggml-rpc.cpp:")
        told.append(f"{head}CRASHED" if found and "crashed" in line else line)
    assert told == expected + GOES_ON, stderr
    assert code == 0


def test_a_server_that_vanishes_while_llama_connects() -> None:
    code, lines, stderr = run("vanishes")
    assert len(lines) == 3, stderr
    for line in lines[:2]:
        assert "Failed to connect" in line
        assert line.endswith("This process can make no RPC connection any more: restart it")
    assert code == 0


def test_an_abort_in_a_guarded_thread_concerns_that_thread() -> None:
    code, lines, stderr = run("own_thread")
    assert lines == [
        "raised: some_file.cpp:7: something impossible",
        "told: lost too True",
        "remembered: True True",
        "ended",
    ], stderr
    assert code == 0


def test_an_abort_in_a_native_thread_is_traced_to_who_started_it() -> None:
    code, lines, stderr = run("native_thread")
    assert lines == ["raised: some_file.cpp:7: something impossible", "ended"], stderr
    assert code == 0


@pytest.mark.parametrize(
    ("case", "expected"), [("unclaimed", []), ("after_a_guard", ["fine, failed in Python True"])]
)
def test_an_abort_that_concerns_no_guard_ends_the_process(case: str, expected: list[str]) -> None:
    code, lines, stderr = run(case)
    assert lines == expected
    assert "llama.cpp aborts this process: some_file.cpp:7: something impossible" in stderr
    assert code == ABORTED
