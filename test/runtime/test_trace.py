"""Trace files: complete, cut off, full; written and read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.planning.plan import Alternative, Plan
from edge_vlm_ros.runtime.plan_text import plan_text
from edge_vlm_ros.runtime.status import PlanRecord, factor_error
from edge_vlm_ros.runtime.trace import QuestionTimes, TraceWriter
from edge_vlm_ros.runtime.trace_reading import read_trace

STEPS = [
    StepRecord(Activity.INGEST, 100.0, 0.25, 64, 1, 300, label="table"),
    StepRecord(Activity.DECODE, 100.25, 0.5, 2, 2, 364),
    StepRecord(Activity.EXPORT, 101.0, 0.001, 300, 1, 0, 9000),
]
ANSWERED = QuestionTimes(7, "table", 100.0, 100.5, 101.5, 103.0, "cpu", "import", "stop")
CANCELLED = QuestionTimes(8, "shelf", 101.0, None, None, 102.0, finish_reason="cancelled")
FROM_PREFILL = QuestionTimes(9, "shelf", 101.0, 101.25, None, 102.0, "cpu", "local", "deadline")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def test_what_was_written_is_read_again(path: Path) -> None:
    writer = TraceWriter(str(path))
    writer.add_steps("cpu", STEPS[:2])
    writer.add_steps("encoder", [])
    writer.add_steps("second", STEPS[:1])
    writer.add_question(ANSWERED)
    writer.add_plan(7, 100.1, "because")
    writer.add_steps("cpu", STEPS[2:])
    writer.add_question(CANCELLED)
    writer.add_question(FROM_PREFILL)
    writer.close()
    trace = read_trace(path)
    assert trace.timelines == {"cpu": STEPS, "second": STEPS[:1]}
    assert trace.questions == [ANSWERED, CANCELLED, FROM_PREFILL]
    told = [event for event in events_of(path) if event["ph"] != "M"]
    assert writer.events == len(told) == 4 + 1 + 8 + 4 + 6


def test_events_are_what_perfetto_expects(path: Path) -> None:
    writer = TraceWriter(str(path))
    writer.add_steps("cpu", STEPS)
    writer.add_question(ANSWERED)
    writer.add_plan(7, 100.1, "because")
    writer.close()
    events = events_of(path)
    ingest = next(event for event in events if event["name"] == "ingest")
    assert (ingest["ph"], ingest["ts"], ingest["dur"]) == ("X", 100e6, 0.25e6)
    assert ingest["args"] == {
        "tokens": 64,
        "sequences": 1,
        "history_tokens": 300,
        "for": "table",
    }
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[ingest["tid"]] == "cpu"
    (plan,) = (event for event in events if event["ph"] == "i")
    assert names[plan["tid"]] == "planner" and plan["args"] == {"plan": "because"}
    # Spans of one id lie below each other: what begins last ends first.
    open_spans: list[str] = []
    spans = [event for event in events if event["ph"] in "be"]
    assert spans == sorted(spans, key=lambda event: event["ts"])
    for event in spans:
        assert event["id"] == 7 and event["cat"] == "question"
        if event["ph"] == "b":
            open_spans.append(event["name"])
        else:
            assert open_spans.pop() == event["name"]
    assert not open_spans
    assert [e["name"] for e in spans if e["ph"] == "b"] == [
        "answer 7",
        "context",
        "prefill",
        "decode",
    ]


def test_steps_of_a_track_never_overlap(path: Path) -> None:
    writer = TraceWriter(str(path))
    writer.add_steps("cpu", [StepRecord(Activity.DECODE, 1.0, 0.5, 1, 1, 0)])
    writer.add_steps("cpu", [StepRecord(Activity.DECODE, 1.4999, 0.5, 1, 1, 0)])
    writer.add_steps("cpu", [StepRecord(Activity.DECODE, 1.1, 0.1, 1, 1, 0)])
    writer.close()
    steps = [event for event in events_of(path) if event["ph"] == "X"]
    for before, after in zip(steps, steps[1:], strict=False):
        assert after["ts"] >= before["ts"] + before["dur"] and after["dur"] >= 0


def test_a_killed_program_leaves_whole_events(path: Path) -> None:
    code = (
        "import os, sys\n"
        "from edge_vlm_ros.engines.step_record import Activity, StepRecord\n"
        "from edge_vlm_ros.runtime.trace import TraceWriter\n"
        "writer = TraceWriter(sys.argv[1])\n"
        "for n in range(3000):\n"
        "    writer.add_steps('cpu', [StepRecord(Activity.DECODE, 1.0 * n, 0.5, 1, 1, n)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -9
    assert events_of(path), "valid JSON"
    steps = read_trace(path).timelines["cpu"]
    assert 1000 < len(steps) < 3000, "all but what was not written yet"
    assert [step.history_tokens for step in steps] == list(range(len(steps)))


def test_what_waits_is_written_after_a_while_though_nothing_more_comes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = TraceWriter(str(path))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    writer.flush()
    writer.add_steps("cpu", STEPS)
    writer.tick()
    assert read_trace(path).timelines == {}
    now += 1.0
    writer.tick()
    assert read_trace(path).timelines == {"cpu": STEPS}


def test_a_full_trace_says_so_and_stays_readable(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = TraceWriter(str(path), max_bytes=20_000)
    for _ in range(1000):
        writer.add_steps("cpu", STEPS[:1])
        writer.add_question(CANCELLED)
        writer.add_plan(8, 102.0, "x")
    assert "20000 bytes" in writer.stopped
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(path) in caplog.text
    writer.close()
    assert 15_000 < path.stat().st_size <= 20_000
    events = events_of(path)
    assert "trace ends here" in events[-1]["name"]
    told = [event for event in events[:-1] if event["ph"] != "M"]
    assert len(told) == writer.events > 50


def test_a_full_disk_ends_the_trace_with_whole_events(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = TraceWriter(str(path))
    writer.add_steps("cpu", STEPS)
    writer.flush()
    real_write = os.pwrite
    end = path.stat().st_size + 100  # in the middle of an event

    def write(file: int, data: bytes, offset: int) -> int:
        if offset >= end:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(file, data[: end - offset], offset)

    monkeypatch.setattr(os, "pwrite", write)
    writer.add_steps("cpu", STEPS)
    writer.flush()
    assert "No space left" in writer.stopped and "No space left" in caplog.text
    writer.add_steps("cpu", STEPS)
    writer.add_question(ANSWERED)
    assert writer.events == 3
    writer.close()
    assert len(events_of(path)) == 5 and read_trace(path).timelines == {"cpu": STEPS}


def test_a_file_that_lost_its_end_is_read_as_far_as_it_goes(path: Path) -> None:
    writer = TraceWriter(str(path))
    writer.add_steps("cpu", STEPS)
    writer.add_question(ANSWERED)
    writer.close()
    text = path.read_text()
    begin = text.index("\n", 2)  # after the first event
    read = []
    for length in range(begin, len(text)):
        path.write_text(text[:length])
        read.append(read_trace(path))
    steps = [len(trace.timelines.get("cpu", [])) for trace in read]
    assert steps == sorted(steps) and set(steps) == {0, 1, 2, 3}
    assert read[0].questions == [] and read[-1].questions == [ANSWERED]


def test_where_no_trace_can_be_is_explained(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        TraceWriter("trace.json")
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="trace.json exists already"):
        TraceWriter(str(path))
    assert path.read_text() == "precious"
    with pytest.raises(OSError, match="cannot be made: No such file"):
        TraceWriter(str(tmp_path / "nowhere" / "trace.json"))

    def full(file: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="cannot be made: .* No space left"):
        TraceWriter(str(tmp_path / "full.json"))


@pytest.mark.parametrize(
    "text",
    ["", "not JSON", "{}", "[1]", '[{"name": "decode", "cat": "step", "ph": "X", "tid": 4}]'],
)
def test_other_files_are_no_traces(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ValueError, match=r"trace\.json is not a trace"):
        read_trace(path)


def test_an_empty_trace_is_one(path: Path) -> None:
    writer = TraceWriter(str(path))
    assert read_trace(path).timelines == {}, "not closed yet"
    writer.close()
    writer.close()
    assert read_trace(path).timelines == {} and writer.events == 0


# ------------------------------------------------------------------------- plans
@pytest.mark.parametrize(
    ("predicted", "actual", "error"),
    [(2.0, 2.0, 0.0), (1.0, 3.0, 2.0), (3.0, 1.0, 2.0), (0.0, 0.0, 0.0), (0.0, 1.0, float("inf"))],
)
def test_errors_are_factors_either_way(predicted: float, actual: float, error: float) -> None:
    assert factor_error(predicted, actual) == error


def test_a_plan_in_words_has_the_best_first_and_the_impossible_last() -> None:
    local = Alternative("local", "cpu", "cpu", 0.0, 1.0, 4.0)
    handoff = Alternative("import", "second", "cpu", 0.25, 0.5, 2.0, others_s=0.125)
    blocked = Alternative("import", "gpu", "gpu", 0.0, 0.0, 0.0, blocked="KV types differ")
    plan = Plan("sdep", handoff, (blocked, local, handoff), "second is idle")
    lines = plan_text(PlanRecord(7, "table", plan, "completion", 1.0, 1.5, 3.0)).splitlines()
    assert lines == [
        "answer 7 of stream table, sdep for the earliest completion: import on second then cpu "
        "(second is idle)",
        "-> import on second then cpu: context 1.250 s, first token 1.500 s, end 3.000 s, "
        "delays other answers by 0.125 s",
        "   local on cpu: context 1.000 s, first token 2.000 s, end 5.000 s",
        "   import on gpu: not possible, KV types differ",
    ]
