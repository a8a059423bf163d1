"""A language engine on llama.cpp: one owner thread, one context, many trunks and branches."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque

from . import native_abort
from .affinity import pin_thread
from .answers import Answers
from .config import EngineConfig
from .core import EngineCore
from .exports import Exports
from .model import LlamaModel
from .protocol import (
    AppendToTrunk,
    Command,
    DropTrunk,
    EndAnswer,
    EngineFailed,
    EngineStatus,
    EventSink,
    ExportRange,
    ForkTrunk,
    ImportIntoTrunk,
    StartAnswer,
)
from .snapshot import Layout
from .step_scheduler import StepKind, StepScheduler
from .trunks import Trunks

_logger = logging.getLogger(__name__)
_CLOSE = object()

CLOSE_TIMEOUT_S = 10.0
"""How long ``close`` waits for an RPC server, in seconds."""

MAX_EXPORTS = 8
"""Export requests that may be pending at once."""


class LlamaCppEngine:
    """Implements the LanguageEngine protocol on llama.cpp.

    ``max_trunks``, ``max_branches`` and ``max_exports`` bound the sequences in use at once.
    ``answer_cells`` is what the longest question and answer need: ingestion always leaves room for
    one, so an accepted question can start sooner or later whatever cameras do. ``stop_tokens`` end
    an answer besides those the vocabulary marks. Events go to ``emit`` from the engine's thread.
    Raises ContextError, and NativeAbortError when the device is lost meanwhile.

    A device that is lost takes the engine's thread with it, for ever: EngineFailed is told, and
    ``close`` leaves it alone.
    """

    def __init__(
        self,
        model: LlamaModel,
        config: EngineConfig,
        *,
        n_ctx: int,
        max_trunks: int,
        max_branches: int,
        answer_cells: int,
        stop_tokens: frozenset[int],
        emit: EventSink,
        max_exports: int = MAX_EXPORTS,
    ) -> None:
        self.config = config
        self._model = model
        self._emit = emit
        self._core = EngineCore(
            model,
            config,
            n_ctx=n_ctx,
            max_trunks=max_trunks,
            max_branches=max_branches,
            max_exports=max_exports,
            answer_cells=answer_cells,
            stop_tokens=stop_tokens,
            emit=emit,
        )
        self._context, self._sequences = self._core.context, self._core.sequences
        self._meter = self._core.meter
        self._scheduler = StepScheduler(config.ingest_share)
        self._trunks = Trunks(self._core)
        self._answers = Answers(self._core, self._trunks)
        self._exports = Exports(self._core, self._trunks)
        self._transfers: deque[Answers | Trunks | Exports] = deque(
            (self._answers, self._trunks, self._exports)
        )
        self._abandoned = False
        self._ended = threading.Event()
        self._commands: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"engine-{config.name}", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- any thread
    @property
    def name(self) -> str:
        return self.config.name

    @property
    def n_cells(self) -> int:
        return self._context.n_ctx

    @property
    def layout(self) -> Layout:
        return self._core.layout

    def submit(self, command: Command) -> None:
        self._commands.put(command)

    def status(self) -> EngineStatus:
        """A reading of the counters of the engine's thread; they may be one step apart."""
        meter = self._meter
        return EngineStatus(
            name=self.name,
            device=self._model.device.text,
            model=self._model.description,
            exact=self.config.exact,
            cells=self.n_cells,
            cells_used=meter.cells_used,
            cells_reserved=meter.cells_reserved,
            trunks=len(self._trunks),
            running_answers=len(self._answers.running),
            waiting_answers=len(self._answers.waiting),
            prefill_tokens=meter.prefill_tokens,
            ingest_tokens=meter.ingest_tokens,
            generated_tokens=meter.generated_tokens,
            prefill_tok_s=meter.prefill_rate.value,
            decode_tok_s=meter.decode_rate.value,
            busy_s=meter.busy_s,
            exported_bytes=meter.exported_bytes,
            imported_bytes=meter.imported_bytes,
            export_bytes_s=meter.export_rate.value,
            import_bytes_s=meter.import_rate.value,
            unordered_tokens=self._context.unordered,
            memory_weights_bytes=self._model.n_bytes,
            memory_kv_bytes=self._context.kv_bytes,
        )

    def close(self) -> None:
        """Stop at the next step and free everything.

        An RPC server that does not come back from a call is given up: what is on it is lost.
        """
        self._commands.put(_CLOSE)
        # Calls on this computer's own devices always return, and what they use must not be freed.
        if not self._ended.wait(CLOSE_TIMEOUT_S if self._model.device.endpoint else None):
            _logger.error(
                "engine %s does not return from %s: given up", self.name, self._model.device.text
            )
            self._abandoned = True
            self._model.device.give_up()
            return
        if not self._abandoned:
            self._thread.join()

    # ---------------------------------------------------------------- engine thread
    def _run(self) -> None:
        pin_thread(self.config.cpus)
        device = self._model.device
        is_lost = None if device.is_cpu else device.is_lost
        with native_abort.guard(device.endpoint or self.name, self._abandon, is_lost):
            self._serve()

    def _abandon(self, error: str) -> None:
        """Called on some thread when native code gave up: the engine's gets no further."""
        if not self._ended.is_set():
            self._abandoned = True
            self._fail(error)
            self._ended.set()

    def _fail(self, error: str) -> None:
        self._emit(EngineFailed(self.name, error))

    def _serve(self) -> None:
        try:
            while self._receive():
                self._step()
                self._answers.start_waiting()
                self._meter.read(self._core.ledger)
        except Exception as error:  # the thread's last words must reach the runtime
            _logger.exception("engine %s failed", self.name)
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._answers.close()
            self._context.close()
            self._ended.set()

    def _receive(self) -> bool:
        """Carry out all queued commands; sleep only when there is nothing to compute."""
        busy = bool(self._answers.running) or self._trunks.can_ingest or self._can_transfer
        while True:
            try:
                command = self._commands.get(block=not busy)
            except queue.Empty:
                return True
            busy = True
            if command is _CLOSE:
                return False
            self._carry_out(command)

    def _carry_out(self, command: object) -> None:
        match command:
            case AppendToTrunk():
                self._trunks.append(command)
            case ImportIntoTrunk():
                self._trunks.import_(command)
            case ForkTrunk():
                self._trunks.fork(command)
            case DropTrunk(trunk):
                self._trunks.drop(trunk)
            case ExportRange():
                self._exports.accept(command)
            case StartAnswer():
                self._answers.accept(command)
            case EndAnswer():
                self._answers.end(command)
            case _:
                raise TypeError(f"engine {self.name}: not a command: {command!r}")
        self._answers.start_waiting()

    @property
    def _can_transfer(self) -> bool:
        return any(part.can_transfer for part in self._transfers)

    def _step(self) -> None:
        kind = self._scheduler.choose(
            ingest=self._trunks.can_ingest,
            prefill=self._answers.can_prefill,
            decode=self._answers.can_decode,
            transfer=self._can_transfer,
        )
        if kind is None:
            return
        if kind is not StepKind.DECODE:
            self._answers.tell_all()
        start = time.perf_counter()
        n = self._carry_out_step(kind)
        seconds = time.perf_counter() - start
        self._scheduler.account(kind, seconds)
        self._meter.count(kind, n, seconds)

    def _carry_out_step(self, kind: StepKind) -> int:
        """Returns rows computed."""
        match kind:
            case StepKind.INGEST:
                return self._trunks.ingest_step()
            case StepKind.PREFILL:
                return self._answers.prefill_step()
            case StepKind.DECODE:
                return self._answers.decode_step()
            case StepKind.TRANSFER:
                self._transfer_step()
        return 0

    def _transfer_step(self) -> None:
        """One snapshot; answers, trunks and exports take turns."""
        part = next(part for part in self._transfers if part.can_transfer)
        self._transfers.remove(part)
        self._transfers.append(part)
        part.transfer_step()
