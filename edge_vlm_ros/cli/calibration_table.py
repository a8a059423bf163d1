"""What calibration has measured, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import Busy, CostModel, EngineCosts, MoveCost

HISTORY = 1000
"""Tokens of a history taken as an example."""

_MB = 1e6


def cost_tables(costs: CostModel, engines: Sequence[EngineConfig]) -> str:
    """Speeds at typical shapes, the encoder, and slowdowns. ``engines`` are those of the model."""
    parts = [
        f"Speeds in tokens/s, behind no history and behind {HISTORY} tokens; moves of KV\n",
        aligned(list(_speeds(costs, engines))),
        "",
    ]
    parts += [f"{name}: {1e3 * s:.1f} ms a frame" for name, s in costs.encode_s.items()]
    if costs.slowdowns:
        parts += ["", "Times longer while something else is at work (in columns)\n"]
        parts.append(aligned(list(_slowdowns(costs))))
    return "\n".join(parts)


def busy_names(costs: CostModel) -> tuple[list[Busy], list[Busy]]:
    """Whose slowdowns are known, and by what, each in a fixed order."""
    rows = {who for who, _ in costs.slowdowns}
    columns = {other for _, other in costs.slowdowns}
    order = [*costs.engines, *costs.encode_s]
    kinds = list(Activity)

    def place(busy: Busy) -> tuple[int, int]:
        return order.index(busy[0]), kinds.index(busy[1])

    return sorted(rows, key=place), sorted(columns, key=place)


def label(busy: Busy) -> str:
    return f"{busy[0]} {busy[1].value}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be, numbers to the right of them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *rest = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([first.strip().ljust(widths[0]), *rest]).rstrip())
    return "\n".join(lines)


def _speeds(costs: CostModel, engines: Sequence[EngineConfig]) -> Iterator[Sequence[str]]:
    yield (
        "ENGINE",
        "PREFILL",
        f"BEHIND {HISTORY}",
        "DECODE",
        f"BEHIND {HISTORY}",
        "ANSWERS",
        "TOGETHER",
        "EXPORT",
        "IMPORT",
        "FORK",
    )
    for config in engines:
        yield _speed_row(config, costs.engines[config.name])


def _speed_row(config: EngineConfig, costs: EngineCosts) -> Sequence[str]:
    chunk, n = config.chunk_tokens, config.max_parallel
    return (
        config.name,
        *(_rate(chunk, costs.prefill.seconds(chunk, history)) for history in (0, HISTORY)),
        *(_rate(1, costs.decode.seconds(1, history)) for history in (0, HISTORY)),
        str(n),
        _rate(n, costs.decode.seconds(n, HISTORY)),
        _move(costs.export),
        _move(costs.import_),
        f"{1e3 * costs.fork_s:.2f} ms",
    )


def _rate(tokens: float, seconds: float) -> str:
    return f"{tokens / seconds:.4g}" if seconds > 0 else "?"


def _move(cost: MoveCost) -> str:
    return f"{1e3 * cost.fixed_s:.2f} ms + {1e3 * _MB * cost.byte_s:.3f} ms/MB"


def _slowdowns(costs: CostModel) -> Iterator[Sequence[str]]:
    rows, columns = busy_names(costs)
    yield ("", *map(label, columns))
    for who in rows:
        cells = [costs.slowdowns.get((who, other)) for other in columns]
        yield (label(who), *("-" if c is None else f"{c:.2f}" for c in cells))
