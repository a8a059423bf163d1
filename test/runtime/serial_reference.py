"""The same questions asked alone: what every answer under concurrency must equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from helpers import PATIENCE_S

from edge_vlm_ros.history import FrameItem, Item, TextRole
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AskOptions,
    FinishReason,
    Runtime,
    RuntimeListener,
)


class Committed(RuntimeListener):
    """Answers that ask to be committed, in the order in which they ended."""

    def __init__(self) -> None:
        self.results: list[AnswerResult] = []

    def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
        if result.committed:
            self.results.append(result)


@dataclass
class Seen:
    """What became of one stream: its items in order, and the answers about it."""

    items: tuple[Item, ...]
    results: list[AnswerResult] = field(default_factory=list)
    options: dict[int, AskOptions] = field(default_factory=dict)
    committed: list[AnswerResult] = field(default_factory=list)


def replay(alone: Runtime, seen: Seen, frame: Callable[[FrameItem], object]) -> None:
    """Make the same history step by step; ask each question when its version is the newest."""
    alone.reset("table")
    ids: dict[int, int] = {}  # answer there -> answer here
    turns = list(seen.committed)
    for n, item in enumerate(seen.items, 1):
        if isinstance(item, FrameItem):
            alone.add_frame("table", frame(item), item.stamp_ns)
        elif item.role is TextRole.TURN:
            turn = turns.pop(0)
            assert item.text == f"{turn.question} -> {turn.text}"
            alone.commit(ids[turn.answer_id])
        for result in seen.results:
            if result.context.version.n != n:
                continue
            options = seen.options[result.answer_id]
            again = alone.ask(
                "table",
                result.question,
                AskOptions(sampling=options.sampling, max_tokens=options.max_tokens),
            ).result(PATIENCE_S)
            cancelled = result.finish_reason is FinishReason.CANCELLED
            n_tokens = len(result.token_ids) if cancelled else None
            assert again.token_ids[:n_tokens] == result.token_ids
            assert again.text.startswith(result.text) if cancelled else again.text == result.text
            if result.context.identity or not cancelled:  # it may have ended unencoded
                assert again.context.identity == result.context.identity
            assert again.context.frames == result.context.frames
            ids[result.answer_id] = again.answer_id
    assert not turns and len(ids) == len(seen.results)
