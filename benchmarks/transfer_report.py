"""What the transfer benchmark measured, and its Markdown: medians, spreads and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

AIM_TOKENS = 1536
IMPORT_AIM, DELTA_AIM = 10.0, 30.0


@dataclass(frozen=True)
class Step:
    """One snapshot that an engine exported or imported, in its native calls and checks only."""

    kind: Literal["export", "import"]
    tokens: int
    n_bytes: int
    seconds: float


@dataclass(frozen=True)
class Moved:
    """A question whose history was moved: its TTFT, and the steps that took apart from queueing."""

    ttft_ms: float
    n_bytes: int
    export_ms: float
    import_ms: float

    @classmethod
    def of(cls, ttft_ms: float, steps: Sequence[Step]) -> Moved:
        """Sums over the snapshots of one move. Raises RuntimeError unless all that was exported
        was imported."""
        exported = [s for s in steps if s.kind == "export"]
        imported = [s for s in steps if s.kind == "import"]
        n_bytes = sum(s.n_bytes for s in exported)
        if not n_bytes or n_bytes != sum(s.n_bytes for s in imported):
            raise RuntimeError(
                f"{n_bytes} bytes were exported, {sum(s.n_bytes for s in imported)} imported"
            )
        return cls(
            ttft_ms,
            n_bytes,
            1e3 * sum(s.seconds for s in exported),
            1e3 * sum(s.seconds for s in imported),
        )


@dataclass(frozen=True)
class Handoff:
    """First to second token: all on one engine, and with a handoff in between."""

    local_gap_ms: float
    handoff_gap_ms: float
    moved: Moved


@dataclass(frozen=True)
class Round:
    """One round of one direction: times to the first token, in milliseconds.

    What is quick is measured several times in a round.
    """

    tokens: int
    frames: int
    local_ms: tuple[float, ...]
    full: tuple[Moved, ...]
    delta: tuple[Moved, ...]
    replay_frame_ms: tuple[float, ...]
    replay_ms: float | None
    """None where it was left out."""
    recompute_ms: float
    handoff: tuple[Handoff, ...]
    encode_ms: float
    """Of one frame, a moving average."""


@dataclass(frozen=True)
class Case:
    """All rounds of one direction at one length of the history."""

    kv_type: str
    source: str
    destination: str
    rounds: tuple[Round, ...]

    @property
    def direction(self) -> str:
        return f"{self.source} -> {self.destination}"


@dataclass(frozen=True)
class Spread:
    """Median, least and largest of some values."""

    median: float
    least: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 1) -> str:
        m, a, b = (f"{x:.{digits}f}" for x in (self.median, self.least, self.largest))
        return m if a == b else f"{m} ({a}..{b})"


def full_ms(one: Round) -> float:
    return statistics.median(m.ttft_ms for m in one.full)


def delta_ms(one: Round) -> float:
    return statistics.median(m.ttft_ms for m in one.delta)


def import_gain(case: Case) -> Spread:
    """How many times earlier the first token comes by importing all than by recomputing it."""
    return Spread.of([r.recompute_ms / full_ms(r) for r in case.rounds])


def delta_gain(case: Case) -> Spread:
    """How many times earlier the first token comes by importing one frame behind what is there
    than by recomputing all."""
    return Spread.of([r.recompute_ms / delta_ms(r) for r in case.rounds])


def summary(case: Case) -> str:
    """A case in one line, while the others are still to come."""
    local = statistics.median(ms for r in case.rounds for ms in r.local_ms)
    full, delta = (Spread.of([ms(r) for r in case.rounds]) for ms in (full_ms, delta_ms))
    recompute = Spread.of([r.recompute_ms for r in case.rounds])
    return (
        f"{case.kv_type} KV, {case.direction}, {case.rounds[0].tokens} tokens: local {local:.1f}, "
        f"import {full.text()}, of 1 frame {delta.text()}, recompute {recompute.text(0)} ms; "
        f"{import_gain(case).text()} and {delta_gain(case).text()} times faster"
    )


def report(cases: Sequence[Case]) -> str:
    """Everything as Markdown."""
    parts = [
        _table("Time to the first token, ms", _TTFT_COLUMNS, cases),
        _table("Moving, apart from queueing", _MOVE_COLUMNS, cases),
        _table("Handoff: from the first token to the second, ms", _HANDOFF_COLUMNS, cases),
        aims(cases),
    ]
    return "\n".join(part for part in parts if part)


def aims(cases: Sequence[Case]) -> str:
    """Whether the aims are met, at the length they are set for. Empty without such a case."""
    lines = []
    for case in cases:
        # The length is met to within one frame.
        if abs(case.rounds[0].tokens - AIM_TOKENS) > AIM_TOKENS // 10:
            continue
        for name, gain, aim in (
            ("import of all", import_gain(case), IMPORT_AIM),
            ("import of one frame", delta_gain(case), DELTA_AIM),
        ):
            verdict = "met" if gain.median >= aim else "NOT MET"
            lines.append(
                f"- {case.kv_type}, {case.direction}: {name} {gain.text()} times faster than "
                f"recomputing, the aim is {aim:.0f}: **{verdict}**"
            )
    return "## Aims at 1.5k tokens\n\n" + "\n".join(lines) + "\n" if lines else ""


Column = tuple[str, Callable[[Case], str]]


def _table(title: str, columns: Sequence[Column], cases: Sequence[Case]) -> str:
    names = ["KV", "from -> to", "tokens", *(name for name, _ in columns)]
    lines = [f"## {title}\n", _row(names), "|" + "---|" * len(names)]
    for case in cases:
        start = [case.kv_type, case.direction, str(case.rounds[0].tokens)]
        lines.append(_row([*start, *(text(case) for _, text in columns)]))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _spread(values: Callable[[Round], Sequence[float]], digits: int = 1) -> Callable[[Case], str]:
    def text(case: Case) -> str:
        found = [v for r in case.rounds for v in values(r)]
        return Spread.of(found).text(digits) if found else "-"

    return text


def _rate(moves: Callable[[Round], Sequence[Moved]], part: str) -> Callable[[Case], str]:
    """GB/s of the median move."""

    def text(case: Case) -> str:
        rates = [m.n_bytes / getattr(m, part) / 1e6 for r in case.rounds for m in moves(r)]
        return f"{statistics.median(rates):.2f}"

    return text


def _replay_all(one: Round) -> Sequence[float]:
    return [] if one.replay_ms is None else [one.replay_ms]


_TTFT_COLUMNS: tuple[Column, ...] = (
    ("rounds", lambda case: str(len(case.rounds))),
    ("encode 1 frame", _spread(lambda r: [r.encode_ms])),
    ("local", _spread(lambda r: r.local_ms)),
    ("import all", _spread(lambda r: [m.ttft_ms for m in r.full])),
    ("import 1 frame", _spread(lambda r: [m.ttft_ms for m in r.delta])),
    ("replay 1 frame", _spread(lambda r: r.replay_frame_ms)),
    ("replay all", _spread(_replay_all, 0)),
    ("recompute", _spread(lambda r: [r.recompute_ms], 0)),
    ("recompute / import all", lambda case: f"**{import_gain(case).text()}**"),
    ("recompute / import 1", lambda case: f"**{delta_gain(case).text()}**"),
    ("replay all / import all", _spread(lambda r: [ms / full_ms(r) for ms in _replay_all(r)])),
    (
        "replay 1 / import 1",
        _spread(lambda r: [statistics.median(r.replay_frame_ms) / delta_ms(r)]),
    ),
)
_MOVE_COLUMNS: tuple[Column, ...] = (
    ("MB", lambda case: f"{case.rounds[0].full[0].n_bytes / 1e6:.2f}"),
    ("export, ms", _spread(lambda r: [m.export_ms for m in r.full], 2)),
    ("import, ms", _spread(lambda r: [m.import_ms for m in r.full], 2)),
    ("export, GB/s", _rate(lambda r: r.full, "export_ms")),
    ("import, GB/s", _rate(lambda r: r.full, "import_ms")),
    ("1 frame: MB", lambda case: f"{case.rounds[0].delta[0].n_bytes / 1e6:.2f}"),
    ("1 frame: export, ms", _spread(lambda r: [m.export_ms for m in r.delta], 2)),
    ("1 frame: import, ms", _spread(lambda r: [m.import_ms for m in r.delta], 2)),
)
_HANDOFF_COLUMNS: tuple[Column, ...] = (
    ("local", _spread(lambda r: [h.local_gap_ms for h in r.handoff])),
    ("handed off", _spread(lambda r: [h.handoff_gap_ms for h in r.handoff])),
    ("longer by", _spread(lambda r: [h.handoff_gap_ms - h.local_gap_ms for h in r.handoff])),
    ("first token", _spread(lambda r: [h.moved.ttft_ms for h in r.handoff])),
    ("KB", lambda case: f"{case.rounds[0].handoff[0].moved.n_bytes / 1e3:.0f}"),
    ("export, ms", _spread(lambda r: [h.moved.export_ms for h in r.handoff], 2)),
    ("import, ms", _spread(lambda r: [h.moved.import_ms for h in r.handoff], 2)),
)
