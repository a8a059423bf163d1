"""Answers without words: each is as long as it was drawn."""

from __future__ import annotations

from collections.abc import Callable

from edge_vlm_ros.engines.protocol import StartAnswer

END_TOKEN = 0
WORD_TOKEN = 1

AnswerTokens = Callable[[StartAnswer], int]
"""How many tokens the model would generate; ``max_tokens`` may end the answer before."""


class SilentVocabulary:
    """Implements Vocabulary: tokens have no text."""

    n_vocab = 2

    def piece(self, token: int) -> bytes:
        return b""

    def is_end(self, token: int) -> bool:
        return token == END_TOKEN


class CountingSampler:
    """Implements TokenSampler: ``n_tokens`` words, then the end."""

    def __init__(self, n_tokens: int) -> None:
        self._n_tokens = n_tokens

    def accept(self, token: int) -> None:
        pass

    def sample(self, context: object, row: int, index: int) -> int:
        return WORD_TOKEN if index < self._n_tokens else END_TOKEN

    def close(self) -> None:
        pass
