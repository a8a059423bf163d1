"""What the parts of an engine share: its context, and who has which cells of it."""

from __future__ import annotations

import time

from .cells import CellLedger
from .config import EngineConfig
from .context import LlamaContext
from .errors import ContextError
from .layout import model_layout
from .meter import EngineMeter
from .model import LlamaModel
from .protocol import Boundary, EventSink
from .sequence_pool import SequencePool
from .snapshot import Snapshot, SnapshotHeader
from .snapshot_check import check_snapshot


class EngineCore:
    """Owned by the engine's thread once it runs. For the arguments see LlamaCppEngine.

    Raises ContextError.
    """

    def __init__(
        self,
        model: LlamaModel,
        config: EngineConfig,
        *,
        n_ctx: int,
        max_trunks: int,
        max_branches: int,
        max_exports: int,
        answer_cells: int,
        stop_tokens: frozenset[int],
        emit: EventSink,
    ) -> None:
        if answer_cells > n_ctx:
            raise ContextError(f"n_ctx is {n_ctx}, one answer needs {answer_cells}: raise n_ctx")
        self.model, self.config = model, config
        self.answer_cells, self.stop_tokens = answer_cells, stop_tokens
        self.emit = emit
        self.layout = model_layout(model, config.kv_type)
        self.sequences = SequencePool(max_trunks + max_branches)
        # Apart from the others: exports never take what a stream or an answer was promised.
        self.export_sequences = SequencePool(max_exports, first=max_trunks + max_branches)
        self.context = LlamaContext(
            model,
            n_ctx=n_ctx,
            n_seq_max=max_trunks + max_branches + max_exports + 1,
            n_batch=max(config.chunk_tokens, config.max_parallel),
            kv_type=config.kv_type,
            n_threads=config.threads,
        )
        self.batching = model.is_batch_invariant(config.kv_type) or not config.exact
        self.ledger = CellLedger(self.context.n_ctx)
        self.meter = EngineMeter()

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
        return SnapshotHeader(self.layout, start.tokens, stop.tokens, start.identity, stop.identity)

    def export_snapshot(
        self, sequence: int, start: Boundary, stop: Boundary
    ) -> tuple[Snapshot, float]:
        """Copy a range to host memory; also returns the seconds it took. Raises ExportError."""
        began = time.perf_counter()
        blob = self.context.export_range(sequence, start.tokens, stop.tokens)
        snapshot = Snapshot.seal(self.header(start, stop), blob)
        seconds = time.perf_counter() - began
        self.meter.count_export(snapshot.n_bytes, seconds)
        return snapshot, seconds

    def import_snapshot(
        self, sequence: int, snapshot: Snapshot, start: Boundary, stop: Boundary
    ) -> float:
        """Check a snapshot and extend a sequence by it; returns the seconds it took.

        Raises a SnapshotError; the sequence is as it was then.
        """
        began = time.perf_counter()
        check_snapshot(snapshot, self.header(start, stop))
        self.context.import_range(snapshot.blob, sequence, start.tokens, stop.tokens)
        self.ledger.grow(sequence, stop.tokens - start.tokens)
        seconds = time.perf_counter() - began
        self.meter.count_import(snapshot.n_bytes, seconds)
        return seconds
