"""What an engine is working on: trunks being extended and answers being made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .protocol import AppendToTrunk, FinishReason, StartAnswer, TokenSegment, TrunkId
from .sampling import Sampler
from .text_stream import TextStream

Chunk = tuple[int, ...] | NDArray[np.float32]


class AppendJob:
    """One AppendToTrunk command, cut into chunks that start anew at every segment.

    The cut depends on the command alone, so the same history is always computed in the same
    shapes, whatever else the engine does.
    """

    def __init__(self, command: AppendToTrunk, chunk_tokens: int) -> None:
        self.command = command
        self.seconds = 0.0
        self.tokens_done = 0
        self._chunks = deque(_chunks(command, chunk_tokens))

    @property
    def done(self) -> bool:
        return not self._chunks

    def next_chunk(self) -> Chunk:
        return self._chunks[0]

    def finish_chunk(self, seconds: float) -> None:
        self.tokens_done += len(self._chunks.popleft())
        self.seconds += seconds


def _chunks(command: AppendToTrunk, chunk_tokens: int) -> Iterator[Chunk]:
    for segment in command.segments:
        rows: Chunk
        if isinstance(segment, TokenSegment):
            rows = segment.tokens
        else:
            rows = np.ascontiguousarray(segment.embeddings, np.float32)
        for start in range(0, len(rows), chunk_tokens):
            yield rows[start : start + chunk_tokens]


@dataclass(eq=False)
class Trunk:
    """A live sequence and the commands that will extend it, in order."""

    trunk_id: TrunkId
    sequence: int
    n_tokens: int = 0
    jobs: deque[AppendJob] = field(default_factory=deque)


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"


class Branch:
    """One answer: its private suffix behind a fork, its sampler and its text."""

    def __init__(self, command: StartAnswer, sequence: int) -> None:
        self.command = command
        self.sequence = sequence
        self.phase = Phase.WAITING
        self.position = command.n_tokens
        self.prompt_done = 0
        self.token_ids: list[int] = []
        self.ending: FinishReason | None = None
        self._sampler = Sampler(command.sampling)
        self._text = TextStream(command.stop)

    @property
    def cells_needed(self) -> int:
        # The last token of an answer is shown and never computed.
        return len(self.command.prompt) + self.command.max_tokens - 1

    def prompt_chunk(self, chunk_tokens: int) -> tuple[int, ...]:
        return self.command.prompt[self.prompt_done : self.prompt_done + chunk_tokens]

    def sample(self, context: object, row: int) -> int:
        """Choose the next token after batch row ``row``."""
        return self._sampler.sample(context, row)

    def accept(self, token: int, piece: bytes) -> str:
        """Add a token that belongs to the answer; returns the text that it makes visible.

        Sets ``ending`` when the answer is complete with it.
        """
        self.token_ids.append(token)
        delta = self._text.push(piece)
        if self._text.stopped:
            self.ending = FinishReason.STOP_STRING
        elif len(self.token_ids) >= self.command.max_tokens:
            self.ending = FinishReason.LENGTH
        return delta

    def close(self) -> str:
        """Free the sampler; returns the text still held back."""
        self._sampler.close()
        return self._text.finish()
