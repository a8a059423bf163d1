"""What will extend a trunk: commands, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from .native import Chunk, FramePart
from .protocol import AppendToTrunk, ImportIntoTrunk, Origin, TokenSegment, TrunkId


class AppendJob:
    """One AppendToTrunk command, cut into chunks that start anew at every segment: as few as
    possible, and of nearly equal size, as a last one of a row or two would read all weights too.

    The cut depends on the command alone, so the same history is always computed in the same
    shapes, whatever else the engine does.
    """

    origin = Origin.COMPUTED

    def __init__(self, command: AppendToTrunk, chunk_tokens: int) -> None:
        self.command = command
        self.first_n = self.last_n = command.n
        self.seconds = 0.0
        self.tokens_done = 0
        self._chunks = deque(_chunks(command, chunk_tokens))

    @property
    def done(self) -> bool:
        return not self._chunks

    @property
    def next_cells(self) -> int:
        """Cells that the next step takes."""
        return len(self._chunks[0]) if self._chunks else 0

    def next_chunk(self) -> Chunk:
        return self._chunks[0]

    def finish_chunk(self, seconds: float) -> None:
        self.tokens_done += len(self._chunks.popleft())
        self.seconds += seconds


class ImportJob:
    """One ImportIntoTrunk command: a single step."""

    origin = Origin.IMPORTED
    tokens_done = 0

    def __init__(self, command: ImportIntoTrunk) -> None:
        self.command = command
        self.first_n, self.last_n = command.start.n + 1, command.stop.n

    @property
    def next_cells(self) -> int:
        return self.command.stop.tokens - self.command.start.tokens


Job = AppendJob | ImportJob


def _chunks(command: AppendToTrunk, chunk_tokens: int) -> Iterator[Chunk]:
    for segment in command.segments:
        if isinstance(segment, TokenSegment):
            tokens = segment.tokens
            for start, stop in _cuts(len(tokens), chunk_tokens):
                yield tokens[start:stop]
        else:
            rows = np.ascontiguousarray(segment.embeddings, np.float32)
            for start, stop in _cuts(len(rows), chunk_tokens):
                yield FramePart(rows[start:stop], start, segment.grid)


def _cuts(n: int, most: int) -> Iterator[tuple[int, int]]:
    """Where ``n`` rows are cut into parts of at most ``most``, the longer ones first."""
    n_parts = -(-n // most)
    return pairwise(-(-n * part // n_parts) for part in range(n_parts + 1)) if n else iter(())


@dataclass(eq=False)
class Trunk:
    """A live sequence and the commands that will extend it, in order."""

    trunk_id: TrunkId
    sequence: int
    n_tokens: int = 0
    next_n: int = 1
    """The version that the next command must make first."""
    jobs: deque[Job] = field(default_factory=deque)

    @property
    def finished_n(self) -> int:
        """The newest version that is complete."""
        return (self.jobs[0].first_n if self.jobs else self.next_n) - 1

    @property
    def finished_tokens(self) -> int:
        """Tokens of the versions that are complete: only these stay when a command fails."""
        return self.n_tokens - (self.jobs[0].tokens_done if self.jobs else 0)
