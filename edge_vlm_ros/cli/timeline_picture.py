"""Draws what each engine did when: a Gantt chart, for matplotlib's axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.runtime.trace import QuestionTimes

COLOURS: Mapping[Activity, str] = {
    Activity.ENCODE: "#8c8c8c",
    Activity.INGEST: "#0072b2",
    Activity.PREFILL: "#e69f00",
    Activity.DECODE: "#009e73",
    Activity.EXPORT: "#cc3311",
    Activity.IMPORT: "#aa4499",
}
"""Told apart by people who see no red or green, too."""
_MEANING = {
    Activity.ENCODE: "encode frames",
    Activity.INGEST: "compute histories",
    Activity.PREFILL: "compute questions",
    Activity.DECODE: "generate answers",
    Activity.EXPORT: "export KV",
    Activity.IMPORT: "import KV",
}
_MOVES = (Activity.EXPORT, Activity.IMPORT)
_WAITING, _ANSWERING = "#dddddd", "#9ecae1"
_RESOLUTION = 2000
"""Gaps shorter than this part of the whole are closed: they are no wider than a pixel."""
_LANE = 0.2

Span = tuple[float, float]
"""Start and length in seconds."""


def draw_timelines(
    axes: Any,
    timelines: Mapping[str, Sequence[StepRecord]],
    questions: Sequence[QuestionTimes] = (),
    start: float | None = None,
    stop: float | None = None,
) -> None:
    """A row for each engine and encoder, and above them the questions, if any are given.

    ``timelines`` has the steps of each, oldest first. ``start`` and ``stop`` bound what is shown,
    in seconds of the steps' clock; by default everything is. The axis begins with 0 at ``start``.
    Raises ValueError when there is nothing between them.
    """
    begins = [steps[0].started for steps in timelines.values() if steps]
    begins += [question.arrived for question in questions]
    ends = [steps[-1].started + steps[-1].seconds for steps in timelines.values() if steps]
    ends += [question.finished for question in questions]
    if not begins:
        raise ValueError("there are no steps to draw")
    first = min(begins) if start is None else start
    last = max(ends) if stop is None else stop
    if last <= first:
        raise ValueError(f"nothing lies between {first:.3f} s and {last:.3f} s")
    names = list(timelines)
    shown = set()
    for row, name in enumerate(names):
        for activity, spans in merged(timelines[name], first, last).items():
            shown.add(activity)
            _draw_row(axes, row, activity, [(begin - first, length) for begin, length in spans])
    lanes = _draw_questions(axes, questions, first, last)
    axes.set_yticks(range(len(names)), names)
    if lanes:
        # Text beside lanes that are too thin for names of their own.
        middle = -0.6 - _LANE * (lanes - 1) / 2
        axes.set_yticks([middle, *range(len(names))], ["questions", *names])
    axes.set_ylim(len(names) - 0.5, -0.6 - _LANE * lanes if lanes else -0.5)
    axes.set_xlim(0, last - first)
    axes.set_xlabel("seconds")
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _draw_legend(axes, shown, with_questions=bool(lanes))


def merged(steps: Iterable[StepRecord], start: float, stop: float) -> dict[Activity, list[Span]]:
    """The spans of each activity between ``start`` and ``stop``; neighbours of one kind with no
    visible gap between them are one."""
    gap = (stop - start) / _RESOLUTION
    spans: dict[Activity, list[Span]] = {}
    before: Activity | None = None
    for step in steps:
        begin, end = max(step.started, start), min(step.started + step.seconds, stop)
        if end < begin:
            continue
        own = spans.setdefault(step.activity, [])
        if before is step.activity and begin - sum(own[-1]) <= gap:
            own[-1] = (own[-1][0], end - own[-1][0])
        else:
            own.append((begin, end - begin))
        before = step.activity
    return spans


def _draw_row(axes: Any, row: int, activity: Activity, spans: list[Span]) -> None:
    move = activity in _MOVES
    axes.broken_barh(
        spans,
        # Moves lie above the work: they take milliseconds and need an edge to be seen at all, with
        # which many of them would hide what lies below.
        (row - 0.44, 0.12) if move else (row - 0.28, 0.64),
        facecolors=COLOURS[activity],
        edgecolors=COLOURS[activity],
        linewidth=0.6 if move else 0.0,
        snap=move,  # of bars thinner than a pixel each gets its part of it
        zorder=2,
    )


def _draw_questions(
    axes: Any, questions: Sequence[QuestionTimes], first: float, last: float
) -> int:
    """Draw each question in the lowest lane that is free; returns the number of lanes."""
    free_at: list[float] = []
    for question in sorted(questions, key=lambda q: q.arrived):
        if question.finished < first or question.arrived > last:
            continue
        lane = next((n for n, end in enumerate(free_at) if end <= question.arrived), len(free_at))
        free_at[lane : lane + 1] = [question.finished]
        token = question.finished if question.first_token is None else question.first_token
        below = (-0.6 - _LANE * lane - 0.08, 0.16)
        for begin, end, colour in (
            (question.arrived, token, _WAITING),
            (token, question.finished, _ANSWERING),
        ):
            axes.broken_barh([(begin - first, end - begin)], below, facecolors=colour, zorder=2)
        axes.plot(question.arrived - first, below[0] + 0.08, "|", color="#333333", markersize=5)
    return len(free_at)


def _draw_legend(axes: Any, shown: set[Activity], with_questions: bool) -> None:
    from matplotlib.patches import Patch

    entries = [
        Patch(color=colour, label=_MEANING[activity])
        for activity, colour in COLOURS.items()
        if activity in shown
    ]
    if with_questions:
        entries += [
            Patch(color=_WAITING, label="question: to first token"),
            Patch(color=_ANSWERING, label="question: answer"),
        ]
    axes.legend(
        handles=entries,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=4,
        frameon=False,
        fontsize="small",
        borderaxespad=0.3,
    )
