"""One engine is held while it reads a camera, and another one may take it over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from helpers import (
    PATIENCE_S,
    Gate,
    all_encoded,
    clip,
    engine_of,
    eventually,
    held,
    show,
)
from moves import assert_nothing_is_kept
from two_engines import QUESTION

from edge_vlm_ros.runtime import Answer, AnswerResult, AskOptions, Runtime
from tools.reference_loop import ReferenceLoop

FRAME = 52
OPENING = 3
N_FRAMES = 6
TO_SECOND = {"engine": "second", "path": "import"}


class TakesOver:
    """The policy of a runtime, which lets ``engine`` take ``stream`` over when that is asked.
    Questions go where their stream is ingested, if they may."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.engine = self.stream = ""
        self.plans_again = True
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def ingest_engine(self, state: Any, stream: str, costs: Any) -> str:
        return next(s.ingest_engine for s in state.streams if s.name == stream)

    def plan(self, state: Any, question: Any, costs: Any) -> Any:
        here = question.engine or self.ingest_engine(state, question.stream, costs)
        first = question.prefill_engine or here
        return self._policy.plan(state, replace(question, engine=here, prefill_engine=first), costs)

    def take_over(self, state: Any, questions: Any, engine: str, costs: Any) -> str:
        self.asked.append(engine)
        return self.stream if engine == self.engine else ""


def hold_frame(runtime: Runtime, engine: str, after: int) -> Any:
    """Hold an engine before it computes a frame, after some."""
    calls = iter(range(1000))
    context = engine_of(runtime, engine)._context
    return held(context, "decode_embeddings", lambda *_: next(calls) >= after)


def ingested(runtime: Runtime, engine: str) -> int:
    return engine_of(runtime, engine).status().ingest_tokens


def take_over(runtime: Runtime, engine: str = "cpu", stream: str = "table") -> None:
    """Have it asked now."""
    policy = runtime._loaded().planner.policy
    policy.engine, policy.stream = engine, stream
    answering = runtime._loaded().answering

    def now() -> None:
        assert answering.take_over(engine) == stream
        answering.advance(stream)

    runtime._on_loop(now)
    policy.engine = ""


def ask_table(runtime: Runtime, n: int = 2, **options: Any) -> list[Answer]:
    options.setdefault("max_tokens", 12)
    return [runtime.ask("table", QUESTION, AskOptions(**options)) for _ in range(n)]


@contextmanager
def half_read(
    runtime: Runtime, done: int, questions: int = 2, frames: int = N_FRAMES
) -> Iterator[tuple[list[Answer], Gate]]:
    """``second`` is held when it has computed some frames of ``table``; questions wait for all."""
    with hold_frame(runtime, "second", after=done) as gate:
        show(runtime, "table", clip(1).frames(frames))
        eventually(lambda: all_encoded(runtime, "table"))
        answers = ask_table(runtime, questions)
        gate.wait_until_reached()
        yield answers, gate


def assert_right(runtime: Runtime, answers: list[Answer], reference: ReferenceLoop) -> AnswerResult:
    """All equal what a plain loop says; returns the first."""
    results = [answer.result(PATIENCE_S) for answer in answers]
    reference.reset()
    for frame in clip(1).frames(N_FRAMES):
        reference.add_frame(frame)
    expected, _ = reference.ask(QUESTION, max_tokens=12)
    for result in results:
        assert not result.error
        assert list(result.token_ids) == expected
        assert (result.context.frames, result.metrics.failovers) == (N_FRAMES, 0)
    assert_nothing_is_kept(runtime)
    return results[0]
