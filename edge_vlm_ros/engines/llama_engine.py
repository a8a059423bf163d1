"""A language engine on llama.cpp: one owner thread, one context, many trunks and branches."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque

from .cells import CellLedger
from .config import EngineConfig
from .context import LlamaContext
from .errors import ContextError, DecodeError, EngineError, TrunkError
from .jobs import AppendJob, Branch, Phase, Trunk, cells_needed, fork_source
from .meter import EngineMeter
from .model import LlamaModel
from .protocol import (
    AnswerFinished,
    AppendFailed,
    AppendToTrunk,
    Command,
    DropTrunk,
    EndAnswer,
    EngineFailed,
    EngineStatus,
    EventSink,
    FinishReason,
    PrefillStarted,
    StartAnswer,
    TrunkId,
    VersionComputed,
)
from .sequence_pool import SequencePool
from .step_scheduler import StepKind, StepScheduler

_logger = logging.getLogger(__name__)
_CLOSE = object()


class LlamaCppEngine:
    """Implements the LanguageEngine protocol on the CPU.

    ``max_trunks`` and ``max_branches`` bound the sequences in use at once. ``answer_cells`` is what
    the longest question and answer need: ingestion always leaves room for one, so an accepted
    question can start sooner or later whatever cameras do. ``stop_tokens`` end an answer besides
    those the vocabulary marks. Events go to ``emit`` from the engine's thread. Raises ContextError.
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
    ) -> None:
        self.config = config
        self._answer_cells = answer_cells
        self._stop_tokens = stop_tokens
        self._model = model
        self._emit = emit
        n_sequences = max_trunks + max_branches
        if answer_cells > n_ctx:
            raise ContextError(f"n_ctx is {n_ctx}, one answer needs {answer_cells}: raise n_ctx")
        self._context = LlamaContext(
            model,
            n_ctx=n_ctx,
            n_seq_max=n_sequences,
            n_batch=max(config.chunk_tokens, config.max_parallel),
            kv_type=config.kv_type,
            n_threads=config.threads,
        )
        self._batching = model.is_batch_invariant(config.kv_type) or not config.exact
        self._ledger = CellLedger(self._context.n_ctx)
        self._scheduler = StepScheduler(config.ingest_share)
        self._sequences = SequencePool(n_sequences)
        self._trunks: dict[TrunkId, Trunk] = {}
        self._ingesting: deque[Trunk] = deque()
        self._branches: dict[int, Branch] = {}
        self._waiting: deque[Branch] = deque()
        self._running: deque[Branch] = deque()
        self._state = "ready"
        self._meter = EngineMeter()
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

    def submit(self, command: Command) -> None:
        self._commands.put(command)

    def status(self) -> EngineStatus:
        """A reading of the counters of the engine's thread; they may be one step apart."""
        meter = self._meter
        return EngineStatus(
            name=self.name,
            device="cpu",
            model=self._model.description,
            state=self._state,
            exact=self.config.exact,
            cells=self.n_cells,
            cells_used=meter.cells_used,
            cells_reserved=meter.cells_reserved,
            trunks=len(self._trunks),
            running_answers=len(self._running),
            waiting_answers=len(self._waiting),
            prefill_tokens=meter.prefill_tokens,
            ingest_tokens=meter.ingest_tokens,
            generated_tokens=meter.generated_tokens,
            prefill_tok_s=meter.prefill_rate.value,
            decode_tok_s=meter.decode_rate.value,
            busy_s=meter.busy_s,
            memory_weights_bytes=self._model.n_bytes,
            memory_kv_bytes=self._context.kv_bytes,
        )

    def close(self) -> None:
        if self._thread.is_alive():
            self._commands.put(_CLOSE)
            self._thread.join()

    # ---------------------------------------------------------------- engine thread
    def _run(self) -> None:
        try:
            while self._receive():
                self._step()
                self._start_waiting()
                self._meter.read(self._ledger)
        except Exception as error:  # the thread's last words must reach the runtime
            _logger.exception("engine %s failed", self.name)
            self._state = "failed"
            self._emit(EngineFailed(self.name, f"{type(error).__name__}: {error}"))
        finally:
            for branch in self._branches.values():
                branch.close()
            self._context.close()
            if self._state != "failed":
                self._state = "closed"

    def _receive(self) -> bool:
        """Carry out all queued commands; sleep only when there is nothing to compute."""
        busy = bool(self._running) or self._next_ingesting() is not None
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
                self._append(command)
            case DropTrunk(trunk):
                self._drop_trunk(trunk)
            case StartAnswer():
                self._accept(command)
            case EndAnswer(answer_id, reason):
                branch = self._branches.get(answer_id)
                if branch is not None:
                    self._finish(branch, reason)
            case _:
                raise TypeError(f"engine {self.name}: not a command: {command!r}")
        self._start_waiting()

    def _append(self, command: AppendToTrunk) -> None:
        trunk = self._trunks.get(command.trunk)
        next_n = 1 if trunk is None else trunk.next_n
        if command.n < next_n:
            return  # sent again after a failure
        try:
            if command.n > next_n:
                raise TrunkError(f"{command.trunk} has no version before {command.n}")
            if trunk is None:
                trunk = Trunk(command.trunk, self._sequences.take())
                self._trunks[command.trunk] = trunk
        except EngineError as error:
            self._emit(AppendFailed(command.trunk, command.n, str(error)))
            return
        trunk.next_n += 1
        trunk.jobs.append(AppendJob(command, self.config.chunk_tokens))
        if trunk not in self._ingesting:
            self._ingesting.append(trunk)

    def _drop_trunk(self, trunk_id: TrunkId) -> None:
        trunk = self._trunks.pop(trunk_id, None)
        if trunk is None:
            return
        if trunk in self._ingesting:
            self._ingesting.remove(trunk)
        self._ledger.drop_trunk(trunk_id)
        self._give_sequence(trunk.sequence)

    def _accept(self, command: StartAnswer) -> None:
        """Fork at once: from here on the answer does not depend on its trunk any more."""
        try:
            trunk = fork_source(command, self._trunks)
            # Trunks leave room for ``answer_cells``: a larger answer might wait for ever.
            if cells_needed(command) > self._answer_cells:
                raise EngineError(
                    f"the answer needs {cells_needed(command)} cells, at most {self._answer_cells}"
                )
            branch = Branch(command, self._sequences.take(), self._model.n_vocab)
        except EngineError as error:
            self._emit(AnswerFinished(command.answer_id, FinishReason.ERROR, "", (), str(error), 0))
            return
        self._context.fork(trunk.sequence, branch.sequence, command.n_tokens)
        self._ledger.fork(command.answer_id, command.trunk, command.n_tokens)
        self._branches[command.answer_id] = branch
        self._waiting.append(branch)

    def _start_waiting(self) -> None:
        # Strictly in order: a long question is not overtaken for ever by short ones.
        while self._waiting and len(self._running) < self.config.max_parallel:
            branch = self._waiting[0]
            if not self._ledger.reserve(branch.command.answer_id, cells_needed(branch.command)):
                return
            self._waiting.popleft()
            branch.phase = Phase.PREFILL
            self._running.append(branch)
            self._emit(PrefillStarted(branch.command.answer_id))

    # ---------------------------------------------------------------- steps
    def _step(self) -> None:
        prefilling = next((b for b in self._running if b.phase is Phase.PREFILL), None)
        decoding = [b for b in self._running if b.phase is Phase.DECODE]
        ingesting = self._next_ingesting()
        kind = self._scheduler.choose(
            ingest=ingesting is not None, prefill=prefilling is not None, decode=bool(decoding)
        )
        if kind is not StepKind.DECODE:
            for branch in decoding:  # a chunk may take long: nothing is held back meanwhile
                self._tell(branch)
        start = time.perf_counter()
        if kind is StepKind.INGEST and ingesting is not None:
            n = self._ingest_step(ingesting)
        elif kind is StepKind.PREFILL and prefilling is not None:
            n = self._prefill_step(prefilling)
        elif kind is StepKind.DECODE:
            n = self._decode_step(decoding if self._batching else decoding[:1])
        else:
            return
        seconds = time.perf_counter() - start
        self._scheduler.account(kind, seconds)
        if n:
            self._meter.count(kind, n, seconds)

    def _next_ingesting(self) -> Trunk | None:
        """The trunk whose turn it is, if its next chunk fits beside what is promised."""
        if not self._ingesting:
            return None
        trunk = self._ingesting[0]
        job = trunk.jobs[0]
        room = self._ledger.free - max(0, self._answer_cells - self._ledger.answers)
        return trunk if job.done or len(job.next_chunk()) <= room else None

    def _ingest_step(self, trunk: Trunk) -> int:
        """Compute one chunk of a trunk, or publish what is complete; returns rows computed."""
        job = trunk.jobs[0]
        n = 0
        if not job.done:
            chunk = job.next_chunk()
            start = time.perf_counter()
            try:
                self._context.extend(trunk.sequence, trunk.n_tokens, chunk)
            except DecodeError as error:
                self._fail_appends(trunk, job, error)
                return 0
            n = len(chunk)
            job.finish_chunk(time.perf_counter() - start)
            trunk.n_tokens += n
            self._ledger.grow_trunk(trunk.trunk_id, n)
        if job.done:
            trunk.jobs.popleft()
            self._ingesting.popleft()
            if trunk.jobs:
                self._ingesting.append(trunk)  # streams take turns, one version each
            self._emit(VersionComputed(trunk.trunk_id, job.command.n, trunk.n_tokens, job.seconds))
        return n

    def _fail_appends(self, trunk: Trunk, job: AppendJob, error: DecodeError) -> None:
        """Take the trunk back to where its failed command began. What was to follow cannot."""
        trunk.n_tokens -= job.tokens_done
        self._ledger.grow_trunk(trunk.trunk_id, -job.tokens_done)
        self._context.trim(trunk.sequence, trunk.n_tokens)
        self._ingesting.remove(trunk)
        trunk.next_n = job.command.n
        jobs = list(trunk.jobs)
        trunk.jobs.clear()
        for failed in jobs:
            self._emit(AppendFailed(trunk.trunk_id, failed.command.n, str(error)))

    def _prefill_step(self, branch: Branch) -> int:
        """Compute one chunk of a question; returns rows computed."""
        chunk = branch.prompt_chunk(self.config.chunk_tokens)
        n = len(chunk)
        complete = branch.prompt_done + n == len(branch.command.prompt)
        positions = range(branch.position, branch.position + n)
        wants_logits = [False] * (n - 1) + [complete]
        try:
            self._context.decode_tokens(chunk, positions, [branch.sequence] * n, wants_logits)
        except DecodeError as error:
            self._finish(branch, FinishReason.ERROR, str(error))
            return 0
        self._advance(branch, n)
        branch.prompt_done += n
        if complete:
            branch.phase = Phase.DECODE
            self._sample(branch, n - 1)
        return n

    def _decode_step(self, branches: list[Branch]) -> int:
        """Compute one token of each branch; returns rows computed."""
        try:
            self._context.decode_tokens(
                [branch.token_ids[-1] for branch in branches],
                [branch.position for branch in branches],
                [branch.sequence for branch in branches],
                [True] * len(branches),
            )
        except DecodeError as error:
            return self._isolate_failure(branches, error)
        for row, branch in enumerate(branches):
            self._advance(branch, 1)
            self._sample(branch, row)
        if not self._batching and branches[0] in self._running:
            self._running.remove(branches[0])
            self._running.append(branches[0])
        return len(branches)

    def _isolate_failure(self, branches: list[Branch], error: DecodeError) -> int:
        """One bad row must not end the other answers of its batch; returns rows computed."""
        for branch in branches:
            self._context.trim(branch.sequence, branch.position)
        if len(branches) == 1:
            self._finish(branches[0], FinishReason.ERROR, str(error))
            return 0
        return sum([self._decode_step([branch]) for branch in branches])

    def _advance(self, branch: Branch, n: int) -> None:
        branch.position += n
        self._ledger.grow_branch(branch.command.answer_id, n)

    def _sample(self, branch: Branch, row: int) -> None:
        token = branch.sample(self._context.handle, row)
        if token in self._stop_tokens or self._model.is_end(token):
            self._finish(branch, FinishReason.STOP)
            return
        self._meter.count_generated()
        branch.accept(token, self._model.piece(token))
        if branch.ending is not None:
            self._finish(branch, branch.ending)
        elif branch.is_due(time.perf_counter()):
            self._tell(branch)

    def _tell(self, branch: Branch) -> None:
        """Hand out what a branch has generated and not told yet."""
        untold = branch.untold(time.perf_counter())
        if untold is not None:
            self._emit(untold)

    def _finish(self, branch: Branch, reason: FinishReason, error: str = "") -> None:
        answer_id = branch.command.answer_id
        running = len(self._running)
        del self._branches[answer_id]
        (self._waiting if branch.phase is Phase.WAITING else self._running).remove(branch)
        self._ledger.drop_branch(answer_id)
        self._give_sequence(branch.sequence)
        self._tell(branch)
        tail = branch.close()
        ids = tuple(branch.token_ids)
        self._emit(AnswerFinished(answer_id, reason, tail, ids, error, running))

    def _give_sequence(self, sequence: int) -> None:
        self._context.trim(sequence)
        self._sequences.give(sequence)
