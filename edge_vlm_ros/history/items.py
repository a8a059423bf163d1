"""The elements of a history."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .grid import Grid


class TextRole(Enum):
    """What a text item is there for."""

    OPEN = "open"
    """The tokens every stream of this model starts with."""
    TURN = "turn"
    """A committed question with its answer."""


@dataclass(frozen=True)
class TextItem:
    """A run of token ids; its content is complete when it is appended."""

    tokens: tuple[int, ...]
    role: TextRole
    text: str = ""

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_positions(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class FrameItem:
    """One camera frame: the tokens that wrap it and the size of its projected embeddings.

    ``n_embeddings`` rows of embeddings take ``n_embedding_positions`` positions; the two differ
    in models with M-RoPE, where the embeddings lie in a ``grid``. The content (a digest of what is
    computed) arrives after encoding.
    """

    frame_id: int
    stamp_ns: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    n_embeddings: int
    n_embedding_positions: int
    grid: Grid | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.prefix) + self.n_embeddings + len(self.suffix)

    @property
    def n_positions(self) -> int:
        return len(self.prefix) + self.n_embedding_positions + len(self.suffix)


Item = TextItem | FrameItem
