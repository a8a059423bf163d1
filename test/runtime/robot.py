"""A robot with several engines, some of which can be killed, and what it hears of that."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from helpers import PATIENCE_S, changes, engine_of, eventually, held, show

from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AskOptions,
    EngineConfig,
    PlacementConfig,
    Runtime,
    RuntimeListener,
    SamplingParameters,
)

CPU = EngineConfig(name="cpu", n_threads=1)
FAR = EngineConfig(name="far", device="rpc", n_threads=1)
SECOND = EngineConfig(name="second", n_threads=1)
AT_ONCE = PlacementConfig(retry_s=0.05, max_retry_s=0.2)
NO_SNAPSHOTS = PlacementConfig(retry_s=600.0, max_retry_s=600.0, snapshot_entries=0)
NEVER = PlacementConfig(retry_s=600.0, max_retry_s=600.0)
QUESTION = "Describe the scene."
N_FRAMES = 6

GREEDY = SamplingParameters()
SAMPLED = SamplingParameters(temperature=3.0, top_k=40, seed=11)
PENALISED = SamplingParameters(temperature=2.0, top_p=0.95, repeat_penalty=1.4, seed=3)


@dataclass
class Heard(RuntimeListener):
    """What the runtime tells about engines and ends."""

    failed: list[tuple[str, str]] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    moved: list[tuple[int, str]] = field(default_factory=list)
    ended: Counter[int] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def engine_failed(self, engine: str, error: str) -> None:
        self.failed.append((engine, error))

    def engine_recovered(self, engine: str) -> None:
        self.recovered.append(engine)

    def answer_moved(self, answer: Answer, engine: str, why: str) -> None:
        self.moved.append((answer.answer_id, engine))

    def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
        self.ended[answer.answer_id] += 1

    def frame_dropped(self, stream: str, reason: str, text: str) -> None:
        self.dropped[reason] += 1


@dataclass
class Robot:
    """A runtime that has seen a clip, and what it tells."""

    runtime: Runtime
    heard: Heard

    def ask(self, **options: Any) -> Answer:
        options.setdefault("max_tokens", 32)
        return self.runtime.ask("table", QUESTION, AskOptions(**options))

    def see(self, n: int) -> None:
        """Show the ``n``-th frame."""
        show(self.runtime, "table", changes(1)[0].clip.frames(n + 1)[n:], n)

    def kill(self, name: str = "far") -> None:
        os.kill(self.server_pid(name), signal.SIGKILL)
        eventually(lambda: not self.server(name).alive, "the server is dead")

    def server(self, name: str) -> Any:
        return self.runtime._maker._devices[f"rpc of {name}"].server

    def server_pid(self, name: str) -> int:
        pid: int = self.server(name).pid
        return pid

    def health(self, name: str = "far") -> str:
        return self.reading(name).state

    def reading(self, name: str = "far") -> Any:
        return next(e for e in self.runtime.engine_status() if e.status.name == name)

    def hold(
        self, method: str, engine: str = "far", when: Callable[..., bool] = lambda *arguments: True
    ) -> Any:
        """Hold an engine before a native call."""
        return held(engine_of(self.runtime, engine)._context, method, when)

    def assert_each_ended_once(self) -> None:
        status = self.runtime.question_status()
        assert status.pending == 0
        assert status.accepted == sum(status.finished.values())
        assert self.heard.ended == Counter(range(1, status.accepted + 1))

    def assert_works_again(self, expected: AnswerResult, name: str = "far") -> None:
        """The engine is ready, and answers what a question needs of it."""
        eventually(lambda: self.health(name) == "ready", "the engine works again")
        assert name in self.heard.recovered
        again = self.ask(engine=name, path="replay").result(PATIENCE_S)
        assert (again.metrics.engine, again.metrics.failovers) == (name, 0)
        assert again.token_ids == expected.token_ids
        assert again.error == ""
        self.assert_each_ended_once()


MakeRobot = Callable[..., Robot]


def is_prefill(tokens: Any, positions: Any, sequences: Any, wants_logits: Sequence[bool]) -> bool:
    return wants_logits[-1] and not all(wants_logits)


def decode_step(n: int) -> Callable[..., bool]:
    """True for the decode step after ``n`` others."""
    steps = iter(range(1_000_000))

    def is_due(tokens: Any, positions: Any, sequences: Any, wants_logits: Sequence[bool]) -> bool:
        return all(wants_logits) and next(steps) >= n

    return is_due


@contextmanager
def raising(runtime: Runtime, engine: str, when: Callable[..., bool]) -> Iterator[None]:
    """A native call of an engine raises what nobody expects, which ends the engine's thread."""
    context = engine_of(runtime, engine)._context
    original = context.decode_tokens

    def decode_tokens(*arguments: Any) -> None:
        if when(*arguments):
            raise RuntimeError("out of luck")
        original(*arguments)

    context.decode_tokens = decode_tokens
    yield
    context.decode_tokens = original


def assert_goes_on(answer: Answer, expected: AnswerResult) -> AnswerResult:
    """The pieces of the answer, those before the loss included, are the undisturbed text."""
    updates = list(answer)
    result = answer.result(PATIENCE_S)
    assert (result.finish_reason, result.error) == (expected.finish_reason, "")
    assert result.token_ids == expected.token_ids
    pieces = [update for update in updates if update.delta]
    assert [update.sequence for update in pieces] == list(range(len(pieces)))
    assert "".join(update.delta for update in pieces) == result.text == expected.text
    counts = [update.generated_tokens for update in updates]
    assert counts == sorted(counts)
    assert result.context == expected.context
    return result
