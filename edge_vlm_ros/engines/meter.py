"""What an engine has done: written by its thread, read by others."""

from __future__ import annotations

from .cells import CellLedger
from .moving_average import MovingAverage
from .step_scheduler import StepKind


class EngineMeter:
    """Counters since start, rates in tokens or bytes per second, cells at the last step."""

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.ingest_tokens = 0
        self.generated_tokens = 0
        self.prefill_rate = MovingAverage()
        self.decode_rate = MovingAverage()
        self.exported_bytes = 0
        self.imported_bytes = 0
        self.export_rate = MovingAverage()
        self.import_rate = MovingAverage()
        self.busy_s = 0.0
        self.cells_used = 0
        self.cells_reserved = 0

    def count(self, kind: StepKind, tokens: int, seconds: float) -> None:
        """A step of this kind computed ``tokens`` rows in ``seconds``."""
        self.busy_s += seconds
        if not tokens:
            return
        if kind is StepKind.DECODE:
            self.decode_rate.add(tokens / seconds)
            return
        self.prefill_rate.add(tokens / seconds)
        if kind is StepKind.INGEST:
            self.ingest_tokens += tokens
        else:
            self.prefill_tokens += tokens

    def count_generated(self) -> None:
        """One more token belongs to an answer."""
        self.generated_tokens += 1

    def count_export(self, n_bytes: int, seconds: float) -> None:
        """A snapshot was exported."""
        self.exported_bytes += n_bytes
        self.export_rate.add(n_bytes / seconds)

    def count_import(self, n_bytes: int, seconds: float) -> None:
        """A snapshot was checked and imported."""
        self.imported_bytes += n_bytes
        self.import_rate.add(n_bytes / seconds)

    def read(self, ledger: CellLedger) -> None:
        self.cells_used = ledger.used
        self.cells_reserved = ledger.reserved
