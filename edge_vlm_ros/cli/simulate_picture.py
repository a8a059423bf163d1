"""The picture that a simulation leaves: times to the first token, and what each engine did when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_vlm_ros.simulation.observer import question_times
from edge_vlm_ros.simulation.result import AnswerRecord, SimulationResult

from .timeline_picture import draw_timelines

SHOWN_S = 60.0
"""Of a longer live stream only the middle is drawn: its steps would be too thin to be seen."""

_LINE_STYLES = ("-", "--", ":", "-.")


def draw_results(title: str, results: Sequence[SimulationResult], path: Path) -> None:
    """Write a PNG with a Gantt chart for each policy. Raises ImportError without matplotlib,
    OSError."""
    # As objects, not through pyplot: no window, and nothing is left behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = len(results)
    figure = Figure(figsize=(12, 3.2 + 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    axes = figure.subplots(1 + rows, 1, squeeze=False)[:, 0]
    _draw_distribution(axes[0], results)
    end = max(result.end_s for result in results)
    for place, result in zip(axes[1:], results, strict=True):
        # What comes all at once is drawn as a whole, on one scale.
        start = max(0.0, (result.duration_s - SHOWN_S) / 2)
        _draw_timelines(place, result, start, start + SHOWN_S if result.duration_s else end)
    figure.savefig(path, dpi=120)


def _draw_distribution(axes: Any, results: Sequence[SimulationResult]) -> None:
    for index, result in enumerate(results):
        values = sorted(result.ttft_s)
        if not values:
            continue
        parts = [100.0 * (i + 1) / len(values) for i in range(len(values))]
        style = _LINE_STYLES[index % len(_LINE_STYLES)]
        axes.step([0.0, *values], [0.0, *parts], style, where="post", label=result.policy)
    axes.set_xlabel("time to the first token, s")
    axes.set_ylabel("% of the answers")
    axes.set_xlim(left=0.0)
    axes.set_ylim(0.0, 101.0)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")


def _draw_timelines(axes: Any, result: SimulationResult, start: float, stop: float) -> None:
    draw_timelines(
        axes,
        {
            name: [s for s in steps if s.started + s.seconds > start and s.started < stop]
            for name, steps in result.timelines.items()
        },
        [question_times(answer) for answer in result.answers if _is_within(answer, start, stop)],
        start,
        stop,
    )
    shown = f", from {start:.0f} s to {stop:.0f} s" if start else ""
    axes.set_title(f"{result.policy}{shown}", loc="right")  # the legend is on the left


def _is_within(answer: AnswerRecord, start: float, stop: float) -> bool:
    return answer.arrived < stop and answer.arrived + answer.total_s > start
