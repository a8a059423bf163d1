"""What one step of an engine or encoder was and how long it took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

MAX_RECORDS = 8192
"""Steps that are kept until somebody takes them; the oldest are forgotten first."""


class Activity(Enum):
    """What an engine or an encoder spends its time on."""

    INGEST = "ingest"
    """Computing a chunk of a history."""
    PREFILL = "prefill"
    """Computing a chunk of a question."""
    DECODE = "decode"
    """Computing one token of every running answer."""
    EXPORT = "export"
    IMPORT = "import"
    ENCODE = "encode"
    """Turning a camera frame into embeddings."""


@dataclass(frozen=True)
class StepRecord:
    """One step. ``started`` is a reading of the monotonic clock, in seconds.

    ``rows`` are the tokens computed or moved, ``sequences`` over how many histories or answers,
    ``history_tokens`` how many tokens lay before them, on average over the sequences. ``n_bytes``
    are those moved. ``label`` says for whom: a stream, or ``answer 7``.
    """

    activity: Activity
    started: float
    seconds: float
    rows: int
    sequences: int
    history_tokens: int
    n_bytes: int = 0
    label: str = ""


class StepLog:
    """The newest steps of one engine or encoder: written by its thread, taken by one other."""

    def __init__(self) -> None:
        self._records: deque[StepRecord] = deque(maxlen=MAX_RECORDS)

    def add(self, record: StepRecord) -> None:
        self._records.append(record)

    def take(self) -> list[StepRecord]:
        """The steps since the last call, oldest first."""
        records = []
        while self._records:
            records.append(self._records.popleft())
        return records
