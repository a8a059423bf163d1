"""An answer being made: its private suffix behind a fork, its sampler and its text."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from edge_vlm_ros.history import TextItem, TextRole, extend_identity

from .native import TokenSampler
from .protocol import Boundary, FinishReason, StartAnswer, TokensGenerated
from .text_stream import TextStream

TELL_PERIOD_S = 0.02
"""Shortest time between two pieces of an answer, in seconds."""


class Phase(Enum):
    WAITING = "waiting"
    IMPORT = "import"
    """Its state is to be imported."""
    PREFILL = "prefill"
    DECODE = "decode"
    HANDOFF = "handoff"
    """Its state is to be exported."""


def cells_needed(command: StartAnswer) -> int:
    """Private KV cells that an answer takes at most."""
    # The last token of an answer is shown and never computed.
    return len(command.prompt) + command.max_tokens - 1


def suffix_boundary(start: Boundary, tokens: tuple[int, ...]) -> Boundary:
    """Where a branch is that has computed ``tokens`` behind ``start``, as if they were a turn."""
    identity = extend_identity(start.identity, TextItem(tokens, TextRole.TURN), None)
    n = len(tokens)
    return Boundary(start.n + 1, start.tokens + n, identity, start.positions + n)


class Branch:
    """One answer. ``piece`` gives the bytes of a token.

    Tokens generated elsewhere go through sampler and text like its own, and count as told.
    """

    def __init__(
        self,
        command: StartAnswer,
        sequence: int,
        sampler: TokenSampler,
        piece: Callable[[int], bytes],
    ) -> None:
        self.command = command
        self.sequence = sequence
        self.phase = Phase.WAITING
        self.n_tokens = command.start.tokens
        self.to_prefill = command.prompt + command.generated
        self.token_ids: list[int] = []
        self.ending: FinishReason | None = None
        self._untold = ""
        self._told_tokens = len(command.generated)
        self._told_at = -math.inf
        self._sampler = sampler
        self._text = TextStream(command.stop)
        for token in command.generated:
            self._sampler.accept(token)
            self.accept(token, piece(token))
        self._untold = ""

    @property
    def end(self) -> Boundary:
        """Where its KV ends: all tokens but the last generated one are computed."""
        return suffix_boundary(self.command.start, self.command.prompt + (*self.token_ids[:-1],))

    def start(self) -> None:
        self.phase = Phase.PREFILL if self.command.state is None else Phase.IMPORT

    def next_chunk(self, prompt_tokens: int, generated_tokens: int) -> tuple[int, ...]:
        """The tokens to prefill next: at most so many of the prompt, or of those generated
        elsewhere."""
        done = self.n_tokens - self.command.start.tokens
        n_prompt = len(self.command.prompt)
        if done < n_prompt:
            return self.to_prefill[done : min(done + prompt_tokens, n_prompt)]
        return self.to_prefill[done : done + generated_tokens]

    def sample(self, context: object, row: int) -> int:
        """Choose the next token after batch row ``row``."""
        return self._sampler.sample(context, row, len(self.token_ids))

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
        new = tuple(self.token_ids[self._told_tokens :])
        if not new:
            return None
        delta, self._untold = self._untold, ""
        self._told_tokens, self._told_at = len(self.token_ids), now
        return TokensGenerated(self.command.answer_id, delta, new, len(self.token_ids))

    def close(self) -> str:
        """Free the sampler; returns the text still held back."""
        self._sampler.close()
        return self._text.finish()
