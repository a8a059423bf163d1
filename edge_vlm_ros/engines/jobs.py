"""What an engine is working on: trunks being extended and answers being made."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from .context import Chunk
from .errors import TrunkError
from .protocol import (
    AppendToTrunk,
    FinishReason,
    StartAnswer,
    TokenSegment,
    TokensGenerated,
    TrunkId,
)
from .sampling import Sampler
from .text_stream import TextStream

TELL_PERIOD_S = 0.02
"""Shortest time between two pieces of an answer, in seconds."""


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
    next_n: int = 1
    """The version that the next command must make."""
    jobs: deque[AppendJob] = field(default_factory=deque)

    @property
    def finished_tokens(self) -> int:
        """Tokens of the versions that are complete: only these stay when a command fails."""
        return self.n_tokens - (self.jobs[0].tokens_done if self.jobs else 0)


class Phase(Enum):
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"


def fork_source(command: StartAnswer, trunks: Mapping[TrunkId, Trunk]) -> Trunk:
    """The trunk that an answer forks from. Raises TrunkError when it is not that far."""
    trunk = trunks.get(command.trunk)
    held = 0 if trunk is None else trunk.finished_tokens
    if trunk is None or held < command.n_tokens:
        raise TrunkError(
            f"{held} tokens of {command.trunk} are computed, {command.n_tokens} are needed"
        )
    return trunk


def cells_needed(command: StartAnswer) -> int:
    """Private KV cells that an answer takes at most."""
    # The last token of an answer is shown and never computed.
    return len(command.prompt) + command.max_tokens - 1


class Branch:
    """One answer: its private suffix behind a fork, its sampler and its text."""

    def __init__(self, command: StartAnswer, sequence: int, n_vocab: int) -> None:
        self.command = command
        self.sequence = sequence
        self.phase = Phase.WAITING
        self.position = command.n_tokens
        self.prompt_done = 0
        self.token_ids: list[int] = []
        self.ending: FinishReason | None = None
        self._untold = ""
        self._told_tokens = 0
        self._told_at = -math.inf
        self._sampler = Sampler(command.sampling, n_vocab)
        self._text = TextStream(command.stop)

    def prompt_chunk(self, chunk_tokens: int) -> tuple[int, ...]:
        return self.command.prompt[self.prompt_done : self.prompt_done + chunk_tokens]

    def sample(self, context: object, row: int) -> int:
        """Choose the next token after batch row ``row``."""
        return self._sampler.sample(context, row)

    def accept(self, token: int, piece: bytes) -> None:
        """Add a token that belongs to the answer.

        Sets ``ending`` when the answer is complete with it.
        """
        self.token_ids.append(token)
        self._untold += self._text.push(piece)
        if self._text.stopped:
            self.ending = FinishReason.STOP_STRING
        elif len(self.token_ids) >= self.command.max_tokens:
            self.ending = FinishReason.LENGTH

    def is_due(self, now: float) -> bool:
        """Whether it is time to tell what has been generated: the first token at once, then once
        in ``TELL_PERIOD_S``. Telling every token of a fast model costs more than making it."""
        return now - self._told_at >= TELL_PERIOD_S

    def untold(self, now: float) -> TokensGenerated | None:
        """What has been generated since the last call, if anything. ``now`` is in seconds."""
        count = len(self.token_ids)
        if count == self._told_tokens:
            return None
        delta, self._untold = self._untold, ""
        self._told_tokens, self._told_at = count, now
        return TokensGenerated(self.command.answer_id, delta, count)

    def close(self) -> str:
        """Free the sampler; returns the text still held back."""
        self._sampler.close()
        return self._text.finish()
