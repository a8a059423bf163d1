"""What calibration has measured, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.planning.costs import CostModel

from .calibration_table import HISTORY, busy_names, label

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Told apart by people who see no red or green, too."""


def save_picture(
    path: Path, costs: CostModel, engines: Sequence[EngineConfig], longest: int
) -> None:
    """Prefill over history, decoding over answers, and slowdowns, as PNG. ``longest`` is the
    longest history in tokens. Raises ImportError without matplotlib, OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with_slowdowns = bool(costs.slowdowns)
    figure = Figure(figsize=(16 if with_slowdowns else 10, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    ratios = [1, 1, 1.5] if with_slowdowns else [1, 1]
    axes = figure.subplots(1, len(ratios), width_ratios=ratios)
    _draw_prefill(axes[0], costs, engines, longest)
    _draw_decode(axes[1], costs, engines)
    if with_slowdowns:
        _draw_slowdowns(figure, axes[2], costs)
    figure.savefig(path, format="png", dpi=110)


def _draw_prefill(
    axes: Any, costs: CostModel, engines: Sequence[EngineConfig], longest: int
) -> None:
    history = np.linspace(0, longest, 50)
    for number, config in enumerate(engines):
        cost, chunk = costs.engines[config.name].prefill, config.chunk_tokens
        milliseconds = [1e3 * cost.seconds(chunk, h) for h in history]
        name = f"{config.name}, {chunk} tokens"
        axes.plot(history, milliseconds, label=name, color=_colour(number), linewidth=2)
    axes.set_title("One step of prefill")
    axes.set_xlabel("history before it (tokens)")
    _finish(axes)


def _draw_decode(axes: Any, costs: CostModel, engines: Sequence[EngineConfig]) -> None:
    for number, config in enumerate(engines):
        cost = costs.engines[config.name].decode
        batch = range(1, config.max_parallel + 1)
        for history, style in ((0, "-"), (HISTORY, "--")):
            milliseconds = [1e3 * cost.seconds(n, history) for n in batch]
            name = f"{config.name}, {history} tokens before"
            axes.plot(
                batch, milliseconds, f"o{style}", label=name, color=_colour(number), markersize=4
            )
    axes.set_title("One step of decoding: a token of each answer")
    axes.set_xlabel("answers decoded together")
    axes.xaxis.get_major_locator().set_params(integer=True)
    _finish(axes)


def _draw_slowdowns(figure: Any, axes: Any, costs: CostModel) -> None:
    rows, columns = busy_names(costs)
    factors = np.array([[costs.slowdowns.get((r, c), np.nan) for c in columns] for r in rows])
    most = max(2.0, float(np.nanmax(factors)))
    image = axes.imshow(factors, cmap="YlOrRd", vmin=1.0, vmax=most, aspect="auto")
    for (row, column), factor in np.ndenumerate(factors):
        if np.isfinite(factor):
            dark = factor > 1 + 0.6 * (most - 1)
            axes.text(
                column,
                row,
                f"{factor:.2f}",
                ha="center",
                va="center",
                color="white" if dark else "#222222",
                fontsize="small",
            )
    axes.set_xticks(range(len(columns)), [label(c) for c in columns], rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), [label(r) for r in rows])
    axes.set_title("Times longer than alone (rows), while something else runs (columns)")
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label="factor")


def _finish(axes: Any) -> None:
    axes.set_ylabel("milliseconds")
    axes.set_ylim(bottom=0)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize="small")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
