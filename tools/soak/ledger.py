"""Counts accepted questions and their ends as they happen, and keeps some answers to check."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edge_vlm_ros.history import FrameItem, Item, TextRole
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AnswerState,
    AnswerUpdate,
    FinishReason,
    Runtime,
    RuntimeListener,
)
from tools.reference_loop import ReferenceLoop

from .load import ROOT, Scenery

_WHOLE = (FinishReason.STOP, FinishReason.LENGTH)

Shown = int | tuple[int, ...]
"""What is in a history: a frame by its stamp, a turn by its tokens."""


@dataclass(frozen=True)
class Sample:
    """An answer and everything that it could see."""

    stream: str
    shown: tuple[Shown, ...]
    question: str
    result: AnswerResult


class Ledger(RuntimeListener):
    """Every accepted question ends exactly once, and no engine fails.

    Of ``n_samples`` answers, drawn evenly from all, what they were bound to is kept.
    """

    def __init__(self, n_samples: int, seed: int, complain: Callable[[str], None]) -> None:
        self._n_samples, self._rng, self._complain = n_samples, random.Random(seed), complain
        self.runtime: Runtime | None = None
        self.open: set[int] = set()
        self.accepted = self.ended = 0
        self.samples: list[Sample] = []
        self._bound: dict[int, tuple[Shown, ...]] = {}

    def answer_updated(self, answer: Answer, update: AnswerUpdate) -> None:
        answer_id = answer.answer_id
        if update.state is AnswerState.WAITING_CONTEXT and answer_id not in self.open:
            self.accepted += 1
            self.open.add(answer_id)
        if update.state is AnswerState.QUEUED and self.runtime is not None:
            coordinator = self.runtime._loaded()  # this is its thread
            version = coordinator.answering.questions[answer_id].version
            epoch = coordinator.streams[answer.stream].history.epoch(version.epoch)
            self._bound[answer_id] = _shown(epoch.computed(0, version.n))

    def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
        if answer.answer_id not in self.open:
            self._complain(f"answer {answer.answer_id} ended twice")
            return
        self.open.remove(answer.answer_id)
        self.ended += 1
        shown = self._bound.pop(answer.answer_id, None)
        if result.finish_reason is FinishReason.ERROR:
            self._complain(f"answer {answer.answer_id} ended with an error: {result.error}")
        if shown is not None and result.token_ids:
            self._draw(Sample(answer.stream, shown, answer.question, result))

    def _draw(self, sample: Sample) -> None:
        if len(self.samples) < self._n_samples:
            self.samples.append(sample)
        elif (at := self._rng.randrange(self.ended)) < self._n_samples:
            self.samples[at] = sample

    def engine_failed(self, engine: str, error: str) -> None:
        self._complain(f"engine {engine} failed: {error}")


def _shown(items: Iterable[Item]) -> tuple[Shown, ...]:
    return tuple(
        item.stamp_ns if isinstance(item, FrameItem) else item.tokens
        for item in items
        if isinstance(item, FrameItem) or item.role is TextRole.TURN
    )


def different_answers(samples: Iterable[Sample], scenery: Scenery) -> list[str]:
    """The samples that are not what the plain loop says: a whole answer has all of its tokens, one
    that was ended early the first ones."""
    model = ROOT / "models" / "demo"
    loop = ReferenceLoop(model / "lm.Q8_0.gguf", model / "vision.onnx")
    different = []
    for sample in samples:
        loop.reset()
        for shown in sample.shown:
            if isinstance(shown, int):
                loop.add_frame(scenery.picture(sample.stream, shown))
            else:
                loop._eval_tokens(list(shown))
        ids = list(sample.result.token_ids)
        expected, _ = loop.ask(sample.question, 24)
        if sample.result.finish_reason not in _WHOLE:
            expected = expected[: len(ids)]
        if ids != expected:
            where = sample.result.metrics
            different.append(
                f"answer {sample.result.answer_id} ({where.path}, {where.prefill_engine} -> "
                f"{where.engine}) to {sample.question!r} is {ids}, not {expected}"
            )
    loop.close()
    return different
