"""What the runtime says to a language engine, and what it hears back.

An engine is a thread that owns one native context. Commands are put into its queue; it answers
with events through the callback given at construction, from its own thread. Nothing is shared:
every command and event is a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .sampling import SamplingParameters


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = "stop"
    """The model ended it."""
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True)
class TokenSegment:
    """Token ids that are appended one after the other."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class EmbeddingSegment:
    """Projected embeddings of one frame, float32 [n_tokens, n_embd]."""

    embeddings: NDArray[np.float32]


Segment = TokenSegment | EmbeddingSegment


@dataclass(frozen=True)
class TrunkId:
    """An engine's live sequence of one epoch of a stream."""

    stream: str
    epoch: int


# -------------------------------------------------------------------------------- commands
@dataclass(frozen=True)
class AppendToTrunk:
    """Compute ``segments`` at the end of the trunk, which starts empty. Then version ``n`` of its
    epoch is published.

    Versions follow one another from 1 on: one that would leave a gap fails, which is how a command
    ends that was sent before the failure of an earlier one was known. One that the trunk has, or
    is going to have, is ignored: after a failure everything may be sent again.
    """

    trunk: TrunkId
    n: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class DropTrunk:
    """Forget a trunk. Branches forked from it live on."""

    trunk: TrunkId


@dataclass(frozen=True)
class StartAnswer:
    """Fork a branch after the first ``n_tokens`` tokens of the trunk and answer ``prompt`` there.

    The fork is made when the command is received; the answer waits for its turn.
    """

    answer_id: int
    trunk: TrunkId
    n_tokens: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParameters
    stop: tuple[str, ...]


@dataclass(frozen=True)
class EndAnswer:
    """End an answer at the next step with the text it has. Unknown ids are ignored: it may have
    finished by itself meanwhile."""

    answer_id: int
    reason: FinishReason


Command = AppendToTrunk | DropTrunk | StartAnswer | EndAnswer


# -------------------------------------------------------------------------------- events
@dataclass(frozen=True)
class VersionComputed:
    """The trunk holds finished KV of version ``n``. ``seconds`` were spent computing."""

    trunk: TrunkId
    n: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class AppendFailed:
    """The trunk could not be extended to version ``n``; it is as it was before."""

    trunk: TrunkId
    n: int
    error: str


@dataclass(frozen=True)
class PrefillStarted:
    answer_id: int


@dataclass(frozen=True)
class TokensGenerated:
    """``delta`` is text that can be shown; ``generated_tokens`` counts all tokens so far."""

    answer_id: int
    delta: str
    generated_tokens: int


@dataclass(frozen=True)
class AnswerFinished:
    """The end of an answer. ``tail`` is the text not yet sent with TokensGenerated."""

    answer_id: int
    reason: FinishReason
    tail: str
    token_ids: tuple[int, ...]
    error: str
    running_answers: int


@dataclass(frozen=True)
class EngineFailed:
    """The engine can do nothing any more."""

    engine: str
    error: str


Event = (
    VersionComputed
    | AppendFailed
    | PrefillStarted
    | TokensGenerated
    | AnswerFinished
    | EngineFailed
)
EventSink = Callable[[Event], None]


@dataclass(frozen=True)
class EngineStatus:
    """Counters and gauges of an engine; memory in bytes, rates in tokens per second."""

    name: str
    device: str
    model: str
    state: str
    exact: bool
    cells: int
    cells_used: int
    cells_reserved: int
    trunks: int
    running_answers: int
    waiting_answers: int
    prefill_tokens: int
    ingest_tokens: int
    generated_tokens: int
    prefill_tok_s: float
    decode_tok_s: float
    busy_s: float
    memory_weights_bytes: int
    memory_kv_bytes: int


class LanguageEngine(Protocol):
    """A language model on one device."""

    @property
    def name(self) -> str: ...

    @property
    def n_cells(self) -> int:
        """KV cells: tokens of all trunks and branches together, shared ones counted once."""
        ...

    def submit(self, command: Command) -> None:
        """Queue ``command``. Commands are carried out in order, steps in between."""
        ...

    def status(self) -> EngineStatus: ...

    def close(self) -> None:
        """Stop at the next step and free everything. Running answers get no further event."""
        ...
