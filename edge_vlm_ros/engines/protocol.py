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

from edge_vlm_ros.history import Grid

from .sampling import SamplingParameters
from .snapshot import Layout, Snapshot
from .step_record import StepRecord


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
    """Projected embeddings of one frame, float32 [n_tokens, n_embd].

    ``grid`` is given for models whose positions have several sections (M-RoPE), and for no others.
    """

    embeddings: NDArray[np.float32]
    grid: Grid | None = None


Segment = TokenSegment | EmbeddingSegment


@dataclass(frozen=True)
class TrunkId:
    """An engine's live sequence of one epoch of a stream.

    ``life`` tells a trunk from one of the same epoch that the engine held before and dropped.
    """

    stream: str
    epoch: int
    life: int = 0


@dataclass(frozen=True)
class Boundary:
    """The end of a version: ``n`` items, ``tokens`` tokens (KV cells), prefix identity of 32 bytes.

    ``positions`` is the position of the next token, as many as there are tokens when not given:
    frames in a grid take fewer. Ranges of KV are cut here and nowhere else.
    """

    n: int
    tokens: int
    identity: bytes
    positions: int = -1

    def __post_init__(self) -> None:
        if self.positions < 0:
            object.__setattr__(self, "positions", self.tokens)


class Origin(Enum):
    """How a trunk came to hold a version."""

    COMPUTED = "computed"
    IMPORTED = "imported"
    FORKED = "forked"


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


@dataclass(frozen=True, eq=False)
class ImportIntoTrunk:
    """Extend the trunk, which ends at ``start``, to ``stop`` with KV that was exported elsewhere.

    Then version ``stop.n`` is computed. The snapshot is checked before anything is touched; when
    it is refused the trunk stays as it was and AppendFailed says why. As with AppendToTrunk, what
    the trunk has or is going to have is ignored.
    """

    trunk: TrunkId
    start: Boundary
    stop: Boundary
    snapshot: Snapshot


@dataclass(frozen=True)
class ForkTrunk:
    """Begin ``trunk``, which the engine does not hold, as the versions of ``source`` up to
    ``stop``: no computing, shared cells."""

    source: TrunkId
    trunk: TrunkId
    stop: Boundary


@dataclass(frozen=True)
class ExportRange:
    """Copy the KV between consecutive ``boundaries`` (two or more) of a trunk to host memory, one
    snapshot for each pair of neighbours, one step of the engine each.

    The range is held from when the command is received: the trunk may be dropped right after.
    """

    request_id: int
    trunk: TrunkId
    boundaries: tuple[Boundary, ...]


@dataclass(frozen=True)
class HurryTrunk:
    """An accepted question waits for version ``n`` of the trunk: computing up to it is part of
    answering from now on, and takes turns with decoding like the prefill of a question."""

    trunk: TrunkId
    n: int


@dataclass(frozen=True)
class DropTrunk:
    """Forget a trunk. Branches forked from it live on."""

    trunk: TrunkId


@dataclass(frozen=True, eq=False)
class StartAnswer:
    """Fork a branch at ``start`` of the trunk and answer ``prompt`` there.

    The fork is made when the command is received; the answer waits for its turn.

    An answer that was begun elsewhere goes on after ``generated``, its tokens so far, which are
    not told again: with ``state``, the KV of ``prompt`` and of all generated tokens but the last
    (never computed where it was made), nothing is computed twice; without it they are prefilled.

    With ``prefill_only`` the engine computes the prompt and samples one token; then the branch is
    exported and given up (AnswerHandedOff), unless that token ends the answer.
    """

    answer_id: int
    trunk: TrunkId
    start: Boundary
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParameters
    stop: tuple[str, ...]
    generated: tuple[int, ...] = ()
    state: Snapshot | None = None
    prefill_only: bool = False


@dataclass(frozen=True)
class HandOffAnswer:
    """Give up an answer that is being decoded, without its state (AnswerHandedOff). Ignored when
    it is not: it may have finished by itself meanwhile.

    What was decoded in batches lies scattered in the cache: reading it costs a call for each cell
    and layer, which takes many devices longer than another engine takes to prefill the tokens.
    """

    answer_id: int


@dataclass(frozen=True)
class EndAnswer:
    """End an answer at the next step with the text it has. Unknown ids are ignored: it may have
    finished by itself meanwhile."""

    answer_id: int
    reason: FinishReason


Command = (
    AppendToTrunk
    | ImportIntoTrunk
    | ForkTrunk
    | ExportRange
    | HurryTrunk
    | DropTrunk
    | StartAnswer
    | HandOffAnswer
    | EndAnswer
)


# -------------------------------------------------------------------------------- events
@dataclass(frozen=True)
class VersionComputed:
    """The trunk holds finished KV of version ``n``. ``seconds`` were spent in native calls."""

    trunk: TrunkId
    n: int
    tokens: int
    seconds: float
    origin: Origin = Origin.COMPUTED


@dataclass(frozen=True)
class AppendFailed:
    """The trunk could not be extended to version ``n``; it is as it was before."""

    trunk: TrunkId
    n: int
    error: str
    origin: Origin = Origin.COMPUTED
    """What failed: computing, importing or forking."""


@dataclass(frozen=True, eq=False)
class RangeExported:
    """One snapshot for each pair of neighbours in the command's boundaries."""

    request_id: int
    snapshots: tuple[Snapshot, ...]
    seconds: float


@dataclass(frozen=True)
class ExportFailed:
    request_id: int
    error: str


@dataclass(frozen=True)
class PrefillStarted:
    answer_id: int


@dataclass(frozen=True)
class TokensGenerated:
    """``delta`` is text that can be shown; ``token_ids`` are the tokens since the last event of
    this kind, ``generated_tokens`` counts all so far."""

    answer_id: int
    delta: str
    token_ids: tuple[int, ...]
    generated_tokens: int


@dataclass(frozen=True, eq=False)
class AnswerHandedOff:
    """An answer is given up, what it has generated told; ``state`` is what StartAnswer takes,
    after ``prefill_only``. ``seconds`` were spent exporting."""

    answer_id: int
    state: Snapshot | None
    seconds: float


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
    | RangeExported
    | ExportFailed
    | PrefillStarted
    | TokensGenerated
    | AnswerHandedOff
    | AnswerFinished
    | EngineFailed
)
EventSink = Callable[[Event], None]


@dataclass(frozen=True)
class EngineStatus:
    """Counters and gauges of an engine; memory in bytes, rates in tokens or bytes per second."""

    name: str
    device: str
    model: str
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
    exported_bytes: int
    imported_bytes: int
    export_bytes_s: float
    import_bytes_s: float
    unordered_tokens: int
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

    @property
    def batching(self) -> bool:
        """Whether running answers are decoded together, not in turns."""
        ...

    def submit(self, command: Command) -> None:
        """Queue ``command``. Commands are carried out in order, steps in between."""
        ...

    @property
    def layout(self) -> Layout:
        """What KV must look like to be imported here."""
        ...

    def status(self) -> EngineStatus: ...

    def take_steps(self) -> list[StepRecord]:
        """What it has done since the last call, oldest first; for one reader."""
        ...

    def close(self) -> None:
        """Stop at the next step and free everything. Running answers get no further event."""
        ...
