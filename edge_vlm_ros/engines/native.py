"""What the steps of an engine need of the library that computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.history import Grid


@dataclass(frozen=True, eq=False)
class FramePart:
    """Embeddings of one frame from its row ``first`` on, float32 [n, n_embd] contiguous.

    ``grid`` is that of the whole frame; without one every row has a position of its own.
    """

    embeddings: NDArray[np.float32]
    first: int = 0
    grid: Grid | None = None

    def __len__(self) -> int:
        return len(self.embeddings)


Chunk = tuple[int, ...] | FramePart
"""Token ids or embeddings: rows that fit one batch."""


class Vocabulary(Protocol):
    """The tokens of a model."""

    @property
    def n_vocab(self) -> int: ...

    def piece(self, token: int) -> bytes:
        """The bytes of a token's text."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token."""
        ...


class KvContext(Protocol):
    """Sequences of KV cells in one cache; see LlamaContext for each method's contract.

    Places in a sequence are counted in tokens; their positions are the context's own affair.
    """

    n_ctx: int

    @property
    def handle(self) -> object:
        """What a sampler reads logits from."""
        ...

    def extend(self, sequence: int, first: int, chunk: Chunk) -> None: ...

    def decode_tokens(
        self,
        tokens: Sequence[int],
        places: Sequence[int],
        sequences: Sequence[int],
        wants_logits: Sequence[bool],
    ) -> None: ...

    def fork(self, source: int, target: int, n_tokens: int) -> None: ...

    def trim(self, sequence: int, first: int = 0) -> None: ...

    def export_range(self, sequence: int, start: int, stop: int) -> NDArray[np.uint8]: ...

    def import_range(
        self,
        blob: NDArray[np.uint8],
        sequence: int,
        start: int,
        stop: int,
        next_position: int | None = None,
    ) -> None: ...


class TokenSampler(Protocol):
    """Chooses the tokens of one answer; see Sampler."""

    def accept(self, token: int) -> None: ...

    def sample(self, context: object, row: int, index: int) -> int: ...

    def close(self) -> None: ...
