"""A language engine on llama.cpp: one owner thread, one context, many trunks and branches."""

from __future__ import annotations

import logging
import queue
import threading

from . import native_abort
from .affinity import pin_thread
from .config import EngineConfig
from .context import LlamaContext
from .core import EngineCore
from .errors import ContextError
from .layout import model_layout
from .model import LlamaModel
from .protocol import Command, EngineFailed, EngineStatus, EventSink
from .snapshot import Layout
from .step_record import StepRecord
from .work import EngineWork

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
        if answer_cells > n_ctx:
            raise ContextError(f"n_ctx is {n_ctx}, one answer needs {answer_cells}: raise n_ctx")
        self._context = LlamaContext(
            model,
            n_ctx=n_ctx,
            n_seq_max=max_trunks + max_branches + max_exports + 1,
            n_batch=max(config.chunk_tokens, config.max_parallel),
            kv_type=config.kv_type,
            n_threads=config.threads,
        )
        self._core = EngineCore(
            model,
            self._context,
            model_layout(model, config.kv_type),
            config,
            batching=model.is_batch_invariant(config.kv_type) or not config.exact,
            max_trunks=max_trunks,
            max_branches=max_branches,
            max_exports=max_exports,
            answer_cells=answer_cells,
            stop_tokens=stop_tokens,
            emit=emit,
        )
        self._sequences, self._meter = self._core.sequences, self._core.meter
        self._work = EngineWork(self._core)
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

    @property
    def batching(self) -> bool:
        return self._core.batching

    def submit(self, command: Command) -> None:
        self._commands.put(command)

    def status(self) -> EngineStatus:
        """A reading of the counters of the engine's thread; they may be one step apart."""
        return self._work.status(
            device=self._model.device.text,
            model=self._model.description,
            weights_bytes=self._model.n_bytes,
            kv_bytes=self._context.kv_bytes,
            unordered=self._context.unordered,
        )

    def take_steps(self) -> list[StepRecord]:
        return self._core.steps.take()

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
                self._work.step()
        except Exception as error:  # the thread's last words must reach the runtime
            _logger.exception("engine %s failed", self.name)
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._work.close()
            self._context.close()
            self._ended.set()

    def _receive(self) -> bool:
        """Carry out all queued commands; sleep only when there is nothing to compute."""
        busy = self._work.is_there
        while True:
            try:
                command = self._commands.get(block=not busy)
            except queue.Empty:
                return True
            busy = True
            if command is _CLOSE:
                return False
            self._work.carry_out(command)
