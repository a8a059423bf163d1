"""What cameras and askers do, drawn once and the same for every policy."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True)
class Frame:
    """A camera frame that arrives ``at`` so many seconds."""

    at: float
    stream: str


@dataclass(frozen=True)
class Asked:
    """A question; ``number`` counts from 0.

    The model ends its answer after ``answer_tokens``, unless ``max_tokens`` ends it before: what it
    would have said is known to nobody beforehand. ``engine``, ``prefill_engine`` and ``path`` are
    those of AskOptions.
    """

    at: float
    stream: str
    number: int
    prompt_tokens: int
    answer_tokens: int
    max_tokens: int
    engine: str = ""
    prefill_engine: str = ""
    path: str = ""


@dataclass(frozen=True)
class Workload:
    """``items`` in the order in which they come; ``duration_s`` is how long they keep coming."""

    streams: tuple[str, ...]
    items: tuple[Frame | Asked, ...]
    duration_s: float

    @property
    def questions(self) -> list[Asked]:
        return [item for item in self.items if isinstance(item, Asked)]

    @property
    def frames(self) -> list[Frame]:
        return [item for item in self.items if isinstance(item, Frame)]


def live(
    *,
    streams: int,
    fps: float,
    questions_per_minute: float,
    duration_s: float,
    answer_tokens: int = 64,
    prompt_tokens: int = 24,
    seed: int = 0,
) -> Workload:
    """Frames at a fixed rate on each stream, and questions as a Poisson process over all of them.

    Answers have between half and one and a half times ``answer_tokens``, evenly spread, and may
    have twice as many. Raises ValueError for numbers that make no sense.
    """
    numbers = (fps, questions_per_minute, duration_s)
    sensible = (
        all(map(isfinite, numbers)) and min(fps, duration_s) > 0 and questions_per_minute >= 0
    )
    if streams < 1 or not sensible:
        raise ValueError(
            "a live workload needs a stream, frames, a duration above 0 and no negative rate: "
            f"streams {streams}, fps {fps}, questions_per_minute {questions_per_minute}, "
            f"duration {duration_s} s"
        )
    names = _names(streams)
    items: list[Frame | Asked] = []
    for index, name in enumerate(names):
        offset = index / (fps * streams)  # cameras do not fire together
        count = 1 + int((duration_s - offset) * fps - 1e-9)
        items += [Frame(offset + k / fps, name) for k in range(count)]
    draw = random.Random(seed)
    at = 1.0 / fps  # every stream has shown something by then
    number = 0
    while questions_per_minute:
        at += draw.expovariate(questions_per_minute / 60.0)
        if at >= duration_s:
            break
        tokens = draw.randint(max(1, answer_tokens // 2), max(1, answer_tokens * 3 // 2))
        stream = draw.choice(names)
        items.append(Asked(at, stream, number, prompt_tokens, tokens, 2 * answer_tokens))
        number += 1
    return Workload(names, tuple(sorted(items, key=lambda item: item.at)), duration_s)


def burst(
    *,
    streams: int = 2,
    frames: int = 8,
    questions: int = 4,
    answer_tokens: int = 128,
    prompt_tokens: int = 24,
) -> Workload:
    """Everything at once: so many frames on each stream, then as many questions about each, with
    answers of exactly ``answer_tokens``."""
    names = _names(streams)
    items: list[Frame | Asked] = [Frame(0.0, name) for _ in range(frames) for name in names]
    for number in range(questions * streams):
        stream = names[number % streams]
        items.append(Asked(0.0, stream, number, prompt_tokens, answer_tokens, answer_tokens))
    return Workload(names, tuple(items), 0.0)


def _names(streams: int) -> tuple[str, ...]:
    return tuple(f"camera_{index}" for index in range(streams))
