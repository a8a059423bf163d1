"""The `ask` verb as a process of its own, against a node with the demo model."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from harness import PATIENCE_S, World, world

from edge_vlm_ros.engines.sampling import Sampler

CODE = "import sys; from edge_vlm_ros.cli.ask import main; sys.exit(main())"


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # A suite that runs in the background of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ask(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    process = start(*arguments)
    out, error = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, error


@pytest.fixture
def table() -> Iterator[World]:
    with world() as made:
        made.start()
        made.frames("table", 1)
        yield made


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that do not end by themselves."""

    def sample(_sampler: Sampler, _context: object, _row: int, _index: int) -> int:
        time.sleep(0.02)
        return 100

    monkeypatch.setattr(Sampler, "sample", sample)


def test_an_answer_is_printed_with_a_last_line_of_figures(table: World) -> None:
    code, out, error = ask("Where is the red cup?", "--stream", "table")
    assert (code, error) == (0, "")
    answer, figures = out.splitlines()
    assert answer.endswith(".")
    assert "TTFT" in figures and "tok/s" in figures and "saw 1 frames, table@" in figures


def test_a_rejection_is_printed_with_its_reason(table: World) -> None:
    code, out, error = ask("Where?", "--stream", "nowhere")
    assert (code, out) == (4, "")
    assert "unknown_stream" in error and "nowhere" in error


def test_without_a_node_it_says_so() -> None:
    code, _, error = ask("Where?", "--timeout", "0.3", "--node", "/somewhere")
    assert code == 3
    assert "/somewhere/ask" in error and "--node" in error


def test_wrong_usage() -> None:
    code, _, error = ask("Where?", "--binding", "tomorrow")
    assert code == 2
    assert "version:<epoch>.<n>" in error


def test_a_deadline_leaves_partial_text(endless: None, table: World) -> None:
    code, out, error = ask("Where?", "--deadline", "0.3", "--max-tokens", "200")
    assert code == 5
    assert "deadline" in error and out.splitlines()[0]


def test_ctrl_c_cancels_the_goal_and_prints_what_there_is(endless: None, table: World) -> None:
    process = start("Where?", "--max-tokens", "256")
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert first and "cancelled" in out and "ask: cancelled" in error
    runtime = table.node.runtime
    assert runtime is not None
    assert runtime.question_status().finished["cancelled"] == 1


def test_an_aborted_goal_is_an_error(endless: None, table: World) -> None:
    process = start("Where?", "--max-tokens", "256")
    assert process.stdout is not None
    process.stdout.read(1)
    assert table.node.change("deactivate")
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "cancelled" in error
