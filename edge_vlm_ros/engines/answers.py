"""The answers of an engine: forked at once, started in order, decoded together."""

from __future__ import annotations

from collections import deque
from itertools import islice

from .branch import Branch, Phase, cells_needed
from .core import EngineCore
from .decode_calls import DecodeCalls
from .errors import DecodeError, EngineError, ExportError, SnapshotError
from .protocol import (
    AnswerFinished,
    AnswerHandedOff,
    EndAnswer,
    FinishReason,
    PrefillStarted,
    StartAnswer,
)
from .step_record import Activity
from .trunks import Trunks


class Answers:
    """``max_parallel`` answers run at once, the others wait. Every running one has a step to do."""

    def __init__(self, core: EngineCore, trunks: Trunks) -> None:
        self._core = core
        self._trunks = trunks
        self._branches: dict[int, Branch] = {}
        self.waiting: deque[Branch] = deque()
        self.running: deque[Branch] = deque()
        self._calls = DecodeCalls()

    # ---------------------------------------------------------------- commands
    def accept(self, command: StartAnswer) -> None:
        """Fork at once: from here on the answer does not depend on its trunk any more."""
        core = self._core
        try:
            if command.state is not None and not command.generated:
                raise EngineError("a state without generated tokens has nothing to go on from")
            # Trunks leave room for ``answer_cells``: a larger answer might wait for ever.
            if cells_needed(command) > core.answer_cells:
                raise EngineError(
                    f"the answer needs {cells_needed(command)} cells, at most {core.answer_cells}"
                )
            trunk = self._trunks.holding(command.trunk, command.start.tokens)
            sequence = core.fork(trunk.sequence, command.start.tokens)
        except EngineError as error:
            ids = command.generated
            self._core.emit(
                AnswerFinished(command.answer_id, FinishReason.ERROR, "", ids, str(error), 0)
            )
            return
        branch = Branch(command, sequence, core.sampler(command), core.model.piece)
        self._branches[command.answer_id] = branch
        self.waiting.append(branch)
        if branch.ending is not None:  # the tokens it was begun with are all of it
            self._finish(branch, branch.ending)

    def end(self, command: EndAnswer) -> None:
        branch = self._branches.get(command.answer_id)
        if branch is not None:
            self._finish(branch, command.reason)

    def hand_off(self, answer_id: int) -> None:
        """Give up an answer that is being decoded."""
        branch = self._branches.get(answer_id)
        if branch is not None and branch.phase is Phase.DECODE:
            self._tell(branch)
            self._remove(branch)
            branch.close()
            self._core.emit(AnswerHandedOff(answer_id, None, 0.0))

    def start_waiting(self) -> None:
        # Strictly in order: a long question is not overtaken for ever by short ones.
        while self.waiting and len(self.running) < self._core.config.max_parallel:
            branch = self.waiting[0]
            if not self._core.ledger.reserve(branch.sequence, cells_needed(branch.command)):
                return
            self.waiting.popleft()
            branch.start()
            self.running.append(branch)
            self._core.emit(PrefillStarted(branch.command.answer_id))

    def close(self) -> None:
        for branch in self._branches.values():
            branch.close()

    # ---------------------------------------------------------------- steps
    @property
    def can_prefill(self) -> bool:
        return self._first(Phase.PREFILL) is not None

    @property
    def can_decode(self) -> bool:
        return self._first(Phase.DECODE) is not None

    @property
    def can_transfer(self) -> bool:
        return self._first(Phase.IMPORT, Phase.HANDOFF) is not None

    def _first(self, *phases: Phase) -> Branch | None:
        return next((branch for branch in self.running if branch.phase in phases), None)

    def _decoding(self) -> list[Branch]:
        return [branch for branch in self.running if branch.phase is Phase.DECODE]

    def prefill_step(self) -> int:
        """Compute one chunk of a question; returns rows computed."""
        branch = self._first(Phase.PREFILL)
        assert branch is not None
        most = self._core.config.chunk_tokens
        # Where shapes matter, tokens generated elsewhere are computed as they would have been here.
        chunk = branch.next_chunk(most, most if self._core.batching else 1)
        n = len(chunk)
        stop = branch.n_tokens + n
        complete = stop == branch.command.start.tokens + len(branch.to_prefill)
        places = range(branch.n_tokens, stop)
        wants_logits = [False] * (n - 1) + [complete]
        began = self._core.clock()
        try:
            self._core.context.decode_tokens(chunk, places, [branch.sequence] * n, wants_logits)
        except DecodeError as error:
            self._finish(branch, FinishReason.ERROR, str(error))
            return 0
        self._advance(branch, n)
        if complete:
            branch.phase = Phase.DECODE
            self._sample(branch, n - 1)
        # A device may still compute when the call returns: sampling waits for it.
        seconds, label = self._core.clock() - began, f"answer {branch.command.answer_id}"
        self._core.log_step(Activity.PREFILL, seconds, n, 1, stop - n, label)
        return n

    def decode_step(self) -> int:
        """Compute one token of each running answer, or of one; returns rows computed."""
        branches = self._decoding()
        if self._core.batching:
            rest = iter(branches)
            return sum(
                self._decode([*islice(rest, size)]) for size in self._calls.sizes(len(branches))
            )
        n = self._decode(branches[:1])
        if branches[0] in self.running:
            self.running.remove(branches[0])
            self.running.append(branches[0])
        return n

    def transfer_step(self) -> None:
        """Import the state of an answer that goes on here, or export that of one that leaves."""
        branch = self._first(Phase.IMPORT, Phase.HANDOFF)
        assert branch is not None
        if branch.phase is Phase.IMPORT:
            self._import(branch)
        else:
            self._hand_off(branch)

    def tell_all(self) -> None:
        """Hold nothing back: what comes next may take long."""
        for branch in self._decoding():
            self._tell(branch)

    def _import(self, branch: Branch) -> None:
        command = branch.command
        assert command.state is not None
        start, stop = command.start, branch.end
        try:
            self._core.import_snapshot(branch.sequence, command.state, start, stop)
        except SnapshotError as error:
            self._finish(branch, FinishReason.ERROR, str(error))
            return
        branch.n_tokens = stop.tokens
        branch.phase = Phase.DECODE

    def _hand_off(self, branch: Branch) -> None:
        answer_id, start = branch.command.answer_id, branch.command.start
        try:
            state, seconds = self._core.export_snapshot(branch.sequence, start, branch.end)
        except ExportError as error:
            self._finish(branch, FinishReason.ERROR, str(error))
            return
        self._remove(branch)
        branch.close()
        self._core.emit(AnswerHandedOff(answer_id, state, seconds))

    def _decode(self, branches: list[Branch]) -> int:
        n = len(branches)
        history = sum(branch.n_tokens for branch in branches) // n
        began = self._core.clock()
        try:
            self._core.context.decode_tokens(
                [branch.token_ids[-1] for branch in branches],
                [branch.n_tokens for branch in branches],
                [branch.sequence for branch in branches],
                [True] * n,
            )
        except DecodeError as error:
            return self._isolate_failure(branches, error)
        for row, branch in enumerate(branches):
            self._advance(branch, 1)
            self._sample(branch, row)
        # Sampling is part of what a token takes.
        seconds = self._core.clock() - began
        self._calls.note(n, seconds)
        self._core.log_step(Activity.DECODE, seconds, n, n, history, "")
        return n

    def _isolate_failure(self, branches: list[Branch], error: DecodeError) -> int:
        """One bad row must not end the other answers of its batch; returns rows computed."""
        for branch in branches:
            self._core.context.trim(branch.sequence, branch.n_tokens)
        if len(branches) == 1:
            self._finish(branches[0], FinishReason.ERROR, str(error))
            return 0
        return sum([self._decode([branch]) for branch in branches])

    def _advance(self, branch: Branch, n: int) -> None:
        branch.n_tokens += n
        self._core.ledger.grow(branch.sequence, n)

    def _sample(self, branch: Branch, row: int) -> None:
        core = self._core
        token = branch.sample(core.context.handle, row)
        if token in core.stop_tokens or core.model.is_end(token):
            self._finish(branch, FinishReason.STOP)
            return
        core.meter.count_generated()
        branch.accept(token, core.model.piece(token))
        if branch.ending is not None:
            self._finish(branch, branch.ending)
        elif branch.command.prefill_only:
            self._tell(branch)
            branch.phase = Phase.HANDOFF
        elif branch.is_due(self._core.clock()):
            self._tell(branch)

    def _tell(self, branch: Branch) -> None:
        """Hand out what a branch has generated and not told yet."""
        untold = branch.untold(self._core.clock())
        if untold is not None:
            self._core.emit(untold)

    def _finish(self, branch: Branch, reason: FinishReason, error: str = "") -> None:
        running = len(self.running)
        self._remove(branch)
        self._tell(branch)
        tail = branch.close()
        answer_id, ids = branch.command.answer_id, tuple(branch.token_ids)
        self._core.emit(AnswerFinished(answer_id, reason, tail, ids, error, running))

    def _remove(self, branch: Branch) -> None:
        del self._branches[branch.command.answer_id]
        (self.waiting if branch.phase is Phase.WAITING else self.running).remove(branch)
        self._core.release(branch.sequence)
