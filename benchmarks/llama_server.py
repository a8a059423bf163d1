"""This package's runtime against llama-server, over growing histories of two camera streams.

Both run the same llama.cpp with the same weights on the same tokens (see ``stand_ins``), with equal
threads, KV type and context, and take turns in one run. No ROS on either side.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edge_vlm_ros.engines.config import EngineConfig

from .llama_server_sides import N_STREAMS, Asked, Settings, Side, Sides
from .models import BenchmarkModel
from .stand_ins import StandIn, stand_in

_OPENINGS = ("What", "Where", "Which", "How", "Did", "Is", "Are", "Was")


@dataclass(frozen=True)
class Plan:
    """How much is measured. Histories grow to ``frames``; medians are over ``band`` of them.

    In the second part each client asks ``questions`` questions, with ``base_frames`` frames before
    the first.
    """

    rounds: int
    rate_rounds: int
    frames: int = 24
    band: int = 4
    short_answer: int = 8
    answer: int = 32
    base_frames: int = 8
    questions: int = 8


@dataclass(frozen=True)
class Pair:
    """The same question asked on both sides, the history having so many frames."""

    frames: int
    ours: Asked
    server: Asked

    def __post_init__(self) -> None:
        if self.ours.prompt_tokens != self.server.prompt_tokens:
            raise RuntimeError(
                f"the sides were given {self.ours.prompt_tokens} and {self.server.prompt_tokens} "
                "tokens: they must be the same"
            )

    @property
    def ratio(self) -> float:
        return self.server.ttft_ms / self.ours.ttft_ms

    @property
    def equal(self) -> bool:
        return self.ours.token_ids == self.server.token_ids


@dataclass(frozen=True)
class Growth:
    """Questions asked as a frame arrives, and about frames that have been computed; in the same
    order."""

    arriving: tuple[Pair, ...]
    computed: tuple[Pair, ...]


@dataclass(frozen=True)
class Rate:
    """One round of concurrent clients on one side, and before it the time to the first token of a
    question after many frames that nobody had asked about."""

    requests_s: float
    asked: tuple[Asked, ...]
    unasked: Asked


@dataclass(frozen=True)
class RatePair:
    ours: Rate
    server: Rate

    @property
    def answers(self) -> list[Pair]:
        ours, server = (self.ours, self.server)
        pairs = zip((*ours.asked, ours.unasked), (*server.asked, server.unasked), strict=True)
        return [Pair(0, *pair) for pair in pairs]


@dataclass(frozen=True)
class Result:
    """All figures of one model."""

    label: str
    plan: Plan
    one_stream: Growth
    two_streams: Growth
    rates: tuple[RatePair, ...]


def measure(
    model: BenchmarkModel, plan: Plan, executable: Path, tell: Callable[[str], None]
) -> Result:
    """Run everything for one model; ``tell`` is given a line about each part."""
    settings = Settings(n_threads=EngineConfig().threads)
    series = itertools.count()  # no frame is ever shown twice: nothing can be reused by chance
    with (
        tempfile.TemporaryFile() as log,
        Sides(model.profile, settings, executable, log) as sides,
    ):
        tell("one stream")
        one = _measure_growth(sides, plan, 1, series)
        tell("two streams in turns")
        two = _measure_growth(sides, plan, N_STREAMS, series)
        tell("two clients at once")
        rates = tuple(_measure_rate(sides, plan, turn, series) for turn in range(plan.rate_rounds))
    return Result(model.label, plan, one, two, rates)


def question(number: int) -> str:
    """About 20 tokens with the template; the first one is another than that of the question before,
    so that no part of a question is found in a cache."""
    opening = _OPENINGS[number % len(_OPENINGS)]
    return f"{opening} the red cup moved since picture {number} was taken?"


def _measure_growth(sides: Sides, plan: Plan, n_streams: int, series: Iterable[int]) -> Growth:
    arriving: list[Pair] = []
    computed: list[Pair] = []
    numbers = itertools.count()
    for turn in range(plan.rounds):
        films = list(itertools.islice(series, n_streams))
        for side in sides.in_turns(turn):
            side.reset()
            side.catch_up()
        for k in range(1, plan.frames + 1):
            n = next(numbers)
            order = sides.in_turns(turn + k)
            frames = [stand_in(film, k) for film in films]
            answers = {
                side.name: _ask_all(side, frames, 2 * n, plan.short_answer) for side in order
            }
            arriving += [Pair(k, *pair) for pair in _paired(answers, 0)]
            computed += [Pair(k, *pair) for pair in _paired(answers, 1)]
    return Growth(tuple(arriving), tuple(computed))


def _ask_all(
    side: Side, frames: Sequence[StandIn], number: int, n_tokens: int
) -> tuple[list[Asked], list[Asked]]:
    """Each stream gets a frame and at once a question about it; then each gets another question."""
    new = [
        side.ask(stream, question(number), n_tokens, frame) for stream, frame in enumerate(frames)
    ]
    old = [side.ask(stream, question(number + 1), n_tokens) for stream in range(len(frames))]
    return new, old


def _paired(
    answers: dict[str, tuple[list[Asked], list[Asked]]], which: int
) -> list[tuple[Asked, Asked]]:
    ours, server = answers["edge_vlm_ros"][which], answers["llama-server"][which]
    return list(zip(ours, server, strict=True))


def _measure_rate(sides: Sides, plan: Plan, turn: int, series: Iterable[int]) -> RatePair:
    films = list(itertools.islice(series, N_STREAMS))
    rates = {side.name: _ask_at_once(side, plan, films) for side in sides.in_turns(turn)}
    return RatePair(rates["edge_vlm_ros"], rates["llama-server"])


def _ask_at_once(side: Side, plan: Plan, films: Sequence[int]) -> Rate:
    side.reset()
    for stream, film in enumerate(films):
        for k in range(plan.base_frames):
            side.see(stream, stand_in(film, k))
    side.pass_time()
    unasked = side.ask(0, question(plan.questions), plan.answer)
    side.catch_up()

    def client(stream: int) -> list[Asked]:
        frames = [stand_in(films[stream], plan.base_frames + n) for n in range(plan.questions)]
        return [side.ask(stream, question(n), plan.answer, frame) for n, frame in enumerate(frames)]

    with ThreadPoolExecutor(len(films)) as pool:
        started = time.perf_counter()
        asked = [one for answers in pool.map(client, range(len(films))) for one in answers]
        elapsed = time.perf_counter() - started
    return Rate(len(asked) / elapsed, tuple(asked), unasked)


# ---------------------------------------------------------------------------- report
GROWTH_HEADER = (
    "| frames | tokens | frame just in: llama-server, ms | edge_vlm_ros, ms | ratio "
    "| frames computed: llama-server, ms | edge_vlm_ros, ms | ratio "
    "| frame with the question / ingested before |\n|---|---|---|---|---|---|---|---|---|"
)
RATE_HEADER = "| | llama-server | edge_vlm_ros | ratio |\n|---|---|---|---|"


def report(result: Result) -> str:
    """All tables of one model, as Markdown."""
    pairs = [*result.one_stream.arriving, *result.one_stream.computed]
    pairs += [*result.two_streams.arriving, *result.two_streams.computed]
    pairs += [pair for rate in result.rates for pair in rate.answers]
    lengths = sorted({len(side.token_ids) for pair in pairs for side in (pair.ours, pair.server)})
    return "\n".join(
        [
            "One stream, time to the first token:\n",
            *_growth_rows(result.one_stream, result.plan.band),
            "\nTwo streams asked in turns, time to the first token:\n",
            *_growth_rows(result.two_streams, result.plan.band),
            "\nTwo clients, each with a stream of its own, a new frame before each question:\n",
            *_rate_rows(result),
            f"\n{sum(pair.equal for pair in pairs)} of {len(pairs)} answers have the same tokens "
            f"on both sides; lengths: {', '.join(map(str, lengths))}.",
        ]
    )


def _growth_rows(growth: Growth, band: int) -> list[str]:
    rows = [GROWTH_HEADER]
    last = max(pair.frames for pair in growth.arriving)
    for first in range(1, last + 1, band):
        frames = range(first, min(first + band, last + 1))
        both = zip(growth.arriving, growth.computed, strict=True)
        here = [(new, old) for new, old in both if new.frames in frames]
        rows.append(_growth_row(frames, [new for new, _ in here], [old for _, old in here]))
    return rows


def _growth_row(frames: range, new: Sequence[Pair], old: Sequence[Pair]) -> str:
    usual = statistics.median(
        n.server.ttft_ms / o.ours.ttft_ms for n, o in zip(new, old, strict=True)
    )
    tokens = statistics.median(pair.ours.prompt_tokens for pair in new)
    name = str(frames[0]) if len(frames) == 1 else f"{frames[0]}-{frames[-1]}"
    cells = [name, f"{tokens:.0f}", *_compared(new), *_compared(old), f"**{usual:.2f}**"]
    return f"| {' | '.join(cells)} |"


def _compared(pairs: Sequence[Pair]) -> list[str]:
    """Medians of llama-server and of ours in milliseconds, and of the ratios within pairs."""
    return [
        f"{statistics.median(pair.server.ttft_ms for pair in pairs):.1f}",
        f"{statistics.median(pair.ours.ttft_ms for pair in pairs):.1f}",
        f"**{statistics.median(pair.ratio for pair in pairs):.2f}**",
    ]


def _rate_rows(result: Result) -> list[str]:
    def row(
        name: str, figure: Callable[[Rate], float], digits: int, *, more_is_better: bool
    ) -> str:
        ours = [figure(pair.ours) for pair in result.rates]
        server = [figure(pair.server) for pair in result.rates]
        ratios = [a / b for a, b in zip(ours, server, strict=True)]
        if not more_is_better:
            ratios = [1.0 / ratio for ratio in ratios]
        return (
            f"| {name} | {statistics.median(server):.{digits}f} | "
            f"{statistics.median(ours):.{digits}f} | **{statistics.median(ratios):.2f}** |"
        )

    def first_token(rate: Rate) -> float:
        return statistics.median(one.ttft_ms for one in rate.asked)

    unasked = f"first token after {result.plan.base_frames} frames without a question, ms"
    return [
        RATE_HEADER,
        row("requests/s", lambda rate: rate.requests_s, 3, more_is_better=True),
        row("first token meanwhile, ms", first_token, 1, more_is_better=False),
        row(unasked, lambda rate: rate.unasked.ttft_ms, 1, more_is_better=False),
    ]
