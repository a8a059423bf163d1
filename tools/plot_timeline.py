"""Draws a trace of the service ~/trace (finished or not) as a PNG.

python -m tools.plot_timeline trace.json timeline.png
python -m tools.plot_timeline trace.json timeline.png --start 10 --stop 15
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edge_vlm_ros.cli.picture_file import picture_file
from edge_vlm_ros.cli.timeline_picture import draw_timelines
from edge_vlm_ros.runtime.trace_reading import Trace, read_trace


def picture(
    trace: Trace, path: Path, start: float | None = None, stop: float | None = None, title: str = ""
) -> None:
    """Draw ``trace`` from ``start`` to ``stop``, in seconds from its beginning, into ``path``.

    Raises ValueError when there is nothing to draw.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    begins = [steps[0].started for steps in trace.timelines.values() if steps]
    begins += [question.arrived for question in trace.questions]
    if not begins:
        raise ValueError("the trace has no steps")
    first = min(begins)
    figure = Figure(figsize=(11, 1.6 + 0.55 * (len(trace.timelines) + 1)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    draw_timelines(
        axes,
        trace.timelines,
        trace.questions,
        first + start if start is not None else None,
        first + stop if stop is not None else None,
    )
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=picture_file, help="PNG to write")
    parser.add_argument("--start", type=float, help="seconds from the beginning of the trace")
    parser.add_argument("--stop", type=float, help="seconds from the beginning of the trace")
    parser.add_argument("--title", default="")
    given = parser.parse_args(arguments)
    try:
        picture(read_trace(given.trace), given.picture, given.start, given.stop, given.title)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"wrote {given.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
