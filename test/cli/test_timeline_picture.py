"""Gantt charts of steps: what is merged, what is drawn, and from traces to pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_vlm_ros.cli.timeline_picture import COLOURS, draw_timelines, merged
from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.runtime.trace import QuestionTimes, TraceWriter
from tools import plot_timeline

pytest.importorskip("matplotlib")
DECODE, INGEST, EXPORT = Activity.DECODE, Activity.INGEST, Activity.EXPORT


def step(activity: Activity, started: float, seconds: float) -> StepRecord:
    return StepRecord(activity, started, seconds, 1, 1, 0)


def new_axes() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def bars(axes: Any) -> list[tuple[str, float, float, float]]:
    """Colour, row, start and stop of every rectangle; of questions, which lie above the rows, the
    middle instead of the row."""
    from matplotlib.colors import to_hex

    found = []
    for collection in axes.collections:
        for path in collection.get_paths():
            box = path.get_extents()
            colour = to_hex(collection.get_facecolor()[0])
            middle = round((box.y0 + box.y1) / 2, 3)
            found.append((colour, middle if middle < -0.5 else round(middle), box.x0, box.x1))
    return found


# ------------------------------------------------------------------------- merging
def test_neighbours_of_one_kind_are_one_and_visible_gaps_stay() -> None:
    steps = [
        step(DECODE, 0.0, 1.0),
        step(DECODE, 1.004, 1.0),  # a pixel of 10 s is 5 ms
        step(DECODE, 2.5, 1.0),
        step(INGEST, 3.5, 1.0),
        step(DECODE, 4.5, 0.5),
    ]
    assert merged(steps, 0.0, 10.0) == {
        DECODE: [(0.0, pytest.approx(2.004)), (2.5, 1.0), (4.5, 0.5)],
        INGEST: [(3.5, 1.0)],
    }


def test_another_activity_between_two_keeps_them_apart() -> None:
    steps = [step(DECODE, 0.0, 1.0), step(EXPORT, 1.0, 0.001), step(DECODE, 1.001, 1.0)]
    assert len(merged(steps, 0.0, 10.0)[DECODE]) == 2


def test_only_what_lies_in_the_window_is_left() -> None:
    steps = [step(DECODE, 0.0, 1.0), step(DECODE, 2.0, 2.0), step(DECODE, 9.0, 1.0)]
    assert merged(steps, 1.5, 3.0) == {DECODE: [(2.0, 1.0)]}


def test_ten_thousand_steps_become_few_bars() -> None:
    steps = [step(DECODE, 0.01 * n, 0.0099) for n in range(10_000)]
    assert merged(steps, 0.0, 100.0) == {DECODE: [(0.0, pytest.approx(100.0, abs=0.01))]}


# ------------------------------------------------------------------------- drawing
def test_every_engine_has_a_row_and_every_activity_a_colour() -> None:
    axes = new_axes()
    timelines = {
        "cpu": [step(DECODE, 10.0, 1.0), step(INGEST, 11.0, 2.0)],
        "idle": [],
        "second": [step(DECODE, 12.0, 3.0)],
    }
    draw_timelines(axes, timelines)
    assert sorted(bars(axes)) == sorted(
        [
            (COLOURS[DECODE], 0, 0.0, 1.0),
            (COLOURS[INGEST], 0, 1.0, 3.0),
            (COLOURS[DECODE], 2, 2.0, 5.0),
        ]
    )
    assert [label.get_text() for label in axes.get_yticklabels()] == list(timelines)
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["compute histories", "generate answers"]
    assert axes.get_xlim() == (0.0, 5.0)
    top, bottom = sorted(axes.get_ylim())
    assert top < -0.3 and bottom > 2.3, "the first row is above"
    assert axes.yaxis_inverted()


def test_moves_do_not_hide_work() -> None:
    axes = new_axes()
    draw_timelines(axes, {"cpu": [step(DECODE, 0.0, 1.0), step(EXPORT, 0.5, 0.001)]})
    work, move = sorted(
        (path.get_extents() for c in axes.collections for path in c.get_paths()),
        key=lambda box: box.x0,
    )
    assert move.y1 < work.y0


def test_every_activity_can_be_drawn() -> None:
    assert set(COLOURS) == set(Activity)
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_questions_that_overlap_lie_in_lanes_above_the_engines() -> None:
    axes = new_axes()
    questions = [
        QuestionTimes(1, "table", 0.0, 0.5, 1.0, 4.0),
        QuestionTimes(2, "table", 2.0, None, None, 3.0),
        QuestionTimes(3, "table", 5.0, 5.0, 5.5, 6.0),
    ]
    draw_timelines(axes, {"cpu": [step(DECODE, 1.0, 5.0)]}, questions)
    lanes = {start: row for _, row, start, stop in bars(axes) if row < -0.4 and stop > start}
    assert lanes[0.0] == lanes[1.0] == lanes[5.0] == lanes[5.5] > lanes[2.0]
    assert min(axes.get_ylim()) < min(lanes.values())
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["questions", "cpu"]


def test_nothing_to_draw_is_explained() -> None:
    with pytest.raises(ValueError, match="no steps"):
        draw_timelines(new_axes(), {"cpu": []})
    with pytest.raises(ValueError, match="nothing lies between"):
        draw_timelines(new_axes(), {"cpu": [step(DECODE, 0.0, 1.0)]}, start=2.0)


# ------------------------------------------------------------------------- the tool
def test_a_trace_becomes_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "picture.png"
    writer = TraceWriter(str(trace))
    writer.add_steps("cpu", [step(DECODE, 1000.0 + n, 0.5) for n in range(20)])
    writer.flush()  # not closed: a node that was killed
    assert plot_timeline.main([str(trace), str(picture), "--start", "2", "--stop", "9"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in capsys.readouterr().out


def test_a_file_that_is_no_trace_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "picture.png"
    trace.write_text("[]")
    assert plot_timeline.main([str(trace), str(picture)]) == 1
    assert "no steps" in capsys.readouterr().err
    assert plot_timeline.main([str(tmp_path / "missing.json"), str(picture)]) == 1
    assert "missing.json" in capsys.readouterr().err
    assert not picture.exists()
