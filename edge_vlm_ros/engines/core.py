"""What the parts of an engine share: its context, and who has which cells of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .cells import CellLedger
from .config import EngineConfig
from .meter import EngineMeter
from .native import KvContext, TokenSampler, Vocabulary
from .protocol import Boundary, EventSink, StartAnswer
from .sampling import Sampler
from .sequence_pool import SequencePool
from .snapshot import Layout, Snapshot, SnapshotHeader
from .snapshot_check import check_snapshot
from .step_record import Activity, StepLog, StepRecord


class EngineCore:
    """Owned by the engine's thread once it runs. For most arguments see LlamaCppEngine.

    ``batching``: several answers may be decoded in one step. ``clock`` gives seconds.
    """

    def __init__(
        self,
        model: Vocabulary,
        context: KvContext,
        layout: Layout,
        config: EngineConfig,
        *,
        batching: bool,
        max_trunks: int,
        max_branches: int,
        max_exports: int,
        answer_cells: int,
        stop_tokens: frozenset[int],
        emit: EventSink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.context, self.layout, self.config = model, context, layout, config
        self.batching, self.clock = batching, clock
        self.answer_cells, self.stop_tokens = answer_cells, stop_tokens
        self.emit = emit
        self.sequences = SequencePool(max_trunks + max_branches)
        # Apart from the others: exports never take what a stream or an answer was promised.
        self.export_sequences = SequencePool(max_exports, first=max_trunks + max_branches)
        self.ledger = CellLedger(self.context.n_ctx)
        self.meter = EngineMeter()
        self.steps = StepLog()

    @property
    def ingest_room(self) -> int:
        """Cells that trunks may take: room for one longest answer is always left."""
        return self.ledger.free - max(0, self.answer_cells - self.ledger.answers)

    def begin(self) -> int:
        """A new sequence. Raises NoSequenceError."""
        sequence = self.sequences.take()
        self.ledger.begin(sequence)
        return sequence

    def fork(self, source: int, n_tokens: int, pool: SequencePool | None = None) -> int:
        """A new sequence that shares the first ``n_tokens`` of ``source``. Raises
        NoSequenceError."""
        sequence = (pool or self.sequences).take()
        self.context.fork(source, sequence, n_tokens)
        self.ledger.fork(sequence, source, n_tokens)
        return sequence

    def release(self, sequence: int, pool: SequencePool | None = None) -> None:
        self.context.trim(sequence)
        self.ledger.drop(sequence)
        (pool or self.sequences).give(sequence)

    def header(self, start: Boundary, stop: Boundary) -> SnapshotHeader:
        """What a snapshot between two boundaries is of, in this engine's layout."""
        return SnapshotHeader(
            self.layout,
            start.tokens,
            stop.tokens,
            start.positions,
            stop.positions,
            start.identity,
            stop.identity,
        )

    def sampler(self, command: StartAnswer) -> TokenSampler:
        """What chooses the tokens of an answer."""
        return Sampler(command.sampling, self.model.n_vocab)

    def seal(self, header: SnapshotHeader, blob: NDArray[np.uint8]) -> Snapshot:
        """A snapshot of what was exported."""
        return Snapshot.seal(header, blob)

    def check(self, snapshot: Snapshot, wanted: SnapshotHeader) -> None:
        """Whether a snapshot may be imported. Raises a SnapshotError."""
        check_snapshot(snapshot, wanted)

    def export_snapshot(
        self, sequence: int, start: Boundary, stop: Boundary
    ) -> tuple[Snapshot, float]:
        """Copy a range to host memory; also returns the seconds it took. Raises ExportError."""
        began = self.clock()
        blob = self.context.export_range(sequence, start.tokens, stop.tokens)
        snapshot = self.seal(self.header(start, stop), blob)
        seconds = self.clock() - began
        self.meter.count_export(snapshot.n_bytes, seconds)
        self._log_move(Activity.EXPORT, start, stop, snapshot, seconds)
        return snapshot, seconds

    def import_snapshot(
        self, sequence: int, snapshot: Snapshot, start: Boundary, stop: Boundary
    ) -> float:
        """Check a snapshot and extend a sequence by it; returns the seconds it took.

        Raises a SnapshotError; the sequence is as it was then.
        """
        began = self.clock()
        self.check(snapshot, self.header(start, stop))
        self.context.import_range(
            snapshot.blob, sequence, start.tokens, stop.tokens, stop.positions
        )
        self.ledger.grow(sequence, stop.tokens - start.tokens)
        seconds = self.clock() - began
        self.meter.count_import(snapshot.n_bytes, seconds)
        self._log_move(Activity.IMPORT, start, stop, snapshot, seconds)
        return seconds

    def log_step(
        self,
        activity: Activity,
        seconds: float,
        rows: int,
        sequences: int,
        history: int,
        label: str,
    ) -> None:
        """Note a step that has just ended."""
        started = self.clock() - seconds
        self.steps.add(StepRecord(activity, started, seconds, rows, sequences, history, 0, label))

    def _log_move(
        self,
        activity: Activity,
        start: Boundary,
        stop: Boundary,
        snapshot: Snapshot,
        seconds: float,
    ) -> None:
        started, rows = self.clock() - seconds, stop.tokens - start.tokens
        n_bytes = snapshot.n_bytes
        self.steps.add(StepRecord(activity, started, seconds, rows, 1, start.tokens, n_bytes))
