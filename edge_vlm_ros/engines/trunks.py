"""The trunks of an engine: extended by computing, by importing and by forking."""

from __future__ import annotations

from collections import deque

from .core import EngineCore
from .errors import DecodeError, EngineError, SnapshotError, TrunkError, WrongRangeError
from .jobs import AppendJob, ImportJob, Job, Trunk
from .protocol import (
    AppendFailed,
    AppendToTrunk,
    ForkTrunk,
    ImportIntoTrunk,
    Origin,
    TrunkId,
    VersionComputed,
)
from .step_record import Activity


class Trunks:
    """Trunks take turns, one version each; within one, commands are carried out in order."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._trunks: dict[TrunkId, Trunk] = {}
        self._extending: deque[Trunk] = deque()
        self._awaited: dict[TrunkId, int] = {}
        """Up to which version questions wait for a trunk."""

    def __len__(self) -> int:
        return len(self._trunks)

    # ---------------------------------------------------------------- commands
    def append(self, command: AppendToTrunk) -> None:
        self._extend(command.trunk, AppendJob(command, self._core.config.chunk_tokens))

    def import_(self, command: ImportIntoTrunk) -> None:
        self._extend(command.trunk, ImportJob(command))

    def fork(self, command: ForkTrunk) -> None:
        stop = command.stop
        try:
            source = self.holding(command.source, stop.tokens)
            if command.trunk in self._trunks:
                raise TrunkError(f"{command.trunk} is there already: it cannot begin as a fork")
            sequence = self._core.fork(source.sequence, stop.tokens)
        except EngineError as error:
            self._core.emit(AppendFailed(command.trunk, stop.n, str(error), Origin.FORKED))
            return
        trunk = Trunk(command.trunk, sequence, stop.tokens, stop.n + 1)
        self._trunks[command.trunk] = trunk
        self._core.emit(VersionComputed(command.trunk, stop.n, stop.tokens, 0.0, Origin.FORKED))

    def hurry(self, trunk_id: TrunkId, n: int) -> None:
        """A question waits for version ``n``; the trunk may not have begun yet."""
        trunk = self._trunks.get(trunk_id)
        if trunk is None or trunk.finished_n < n:
            self._awaited[trunk_id] = max(n, self._awaited.get(trunk_id, 0))

    def drop(self, trunk_id: TrunkId) -> None:
        self._awaited.pop(trunk_id, None)
        trunk = self._trunks.pop(trunk_id, None)
        if trunk is None:
            return
        if trunk in self._extending:
            self._extending.remove(trunk)
        self._core.release(trunk.sequence)

    def holding(self, trunk_id: TrunkId, n_tokens: int) -> Trunk:
        """The trunk, when its finished versions have so many tokens. Raises TrunkError."""
        trunk = self._trunks.get(trunk_id)
        held = 0 if trunk is None else trunk.finished_tokens
        if trunk is None or held < n_tokens:
            raise TrunkError(f"{held} tokens of {trunk_id} are computed, {n_tokens} are needed")
        return trunk

    def _extend(self, trunk_id: TrunkId, job: Job) -> None:
        trunk = self._trunks.get(trunk_id)
        next_n = 1 if trunk is None else trunk.next_n
        if job.last_n < next_n:
            return  # sent again after a failure
        try:
            if job.first_n > next_n:
                raise TrunkError(f"{trunk_id} has no version before {job.first_n}")
            if job.first_n < next_n:
                raise TrunkError(
                    f"{trunk_id} has the versions before {next_n} already: it cannot be extended "
                    f"from version {job.first_n - 1} to {job.last_n}"
                )
            if trunk is None:
                trunk = Trunk(trunk_id, self._core.begin())
                self._trunks[trunk_id] = trunk
        except EngineError as error:
            self._core.emit(AppendFailed(trunk_id, job.last_n, str(error), job.origin))
            return
        trunk.next_n = job.last_n + 1
        trunk.jobs.append(job)
        if trunk not in self._extending:
            self._extending.append(trunk)

    # ---------------------------------------------------------------- steps
    @property
    def can_ingest(self) -> bool:
        """Whether there is something to compute that no question waits for, and whose cells fit
        beside what is promised."""
        return self._next(AppendJob, awaited=False) is not None

    @property
    def can_prefill(self) -> bool:
        """The same for what questions wait for."""
        return self._next(AppendJob, awaited=True) is not None

    @property
    def can_transfer(self) -> bool:
        """Whether there is something to import whose cells fit beside what is promised."""
        return self._next(ImportJob) is not None

    def _next(self, kind: type[Job], awaited: bool | None = None) -> Trunk | None:
        """The first trunk that is to be extended in this way, for a waiting question or not.

        Imports do not wait for the time of ingestion, but nobody takes the cells that another one
        waits for.
        """
        if not self._extending:
            return None
        room = max(0, self._core.ingest_room)
        for trunk in self._extending:
            job = trunk.jobs[0]
            if job.next_cells > room:
                return None
            if isinstance(job, kind) and awaited in (None, self._is_awaited(trunk)):
                return trunk
        return None

    def _is_awaited(self, trunk: Trunk) -> bool:
        return trunk.jobs[0].first_n <= self._awaited.get(trunk.trunk_id, 0)

    def ingest_step(self) -> int:
        """Compute one chunk that no question waits for, or publish what is complete; returns rows
        computed."""
        return self._compute(self._next(AppendJob, awaited=False))

    def prefill_step(self) -> int:
        """The same for what questions wait for."""
        return self._compute(self._next(AppendJob, awaited=True))

    def _compute(self, trunk: Trunk | None) -> int:
        assert trunk is not None
        job = trunk.jobs[0]
        assert isinstance(job, AppendJob)
        n = job.next_cells
        if n:
            began = self._core.clock()
            try:
                self._core.context.extend(trunk.sequence, trunk.n_tokens, job.next_chunk())
            except DecodeError as error:
                self._fail(trunk, error)
                return 0
            seconds = self._core.clock() - began
            job.finish_chunk(seconds)
            stream, history = trunk.trunk_id.stream, trunk.n_tokens
            self._core.log_step(Activity.INGEST, seconds, n, 1, history, stream)
            trunk.n_tokens += n
            self._core.ledger.grow(trunk.sequence, n)
        if job.done:
            self._publish(trunk, job.seconds)
        return n

    def transfer_step(self) -> None:
        """Import one snapshot into a trunk."""
        trunk = self._next(ImportJob)
        assert trunk is not None
        job = trunk.jobs[0]
        assert isinstance(job, ImportJob)
        start, stop = job.command.start, job.command.stop
        try:
            if trunk.n_tokens != start.tokens:
                raise WrongRangeError(
                    f"{trunk.trunk_id} ends at {trunk.n_tokens} tokens, the import begins at "
                    f"{start.tokens}"
                )
            snapshot = job.command.snapshot
            seconds = self._core.import_snapshot(trunk.sequence, snapshot, start, stop)
        except SnapshotError as error:
            self._fail(trunk, error)
            return
        trunk.n_tokens = stop.tokens
        self._publish(trunk, seconds)

    def _publish(self, trunk: Trunk, seconds: float) -> None:
        job = trunk.jobs.popleft()
        if job.last_n >= self._awaited.get(trunk.trunk_id, 0):
            self._awaited.pop(trunk.trunk_id, None)
        self._extending.remove(trunk)
        if trunk.jobs:
            self._extending.append(trunk)
        self._core.emit(
            VersionComputed(trunk.trunk_id, job.last_n, trunk.n_tokens, seconds, job.origin)
        )

    def _fail(self, trunk: Trunk, error: EngineError) -> None:
        """Take the trunk back to where its failed command began. What was to follow cannot."""
        job = trunk.jobs[0]
        trunk.n_tokens -= job.tokens_done
        self._core.ledger.grow(trunk.sequence, -job.tokens_done)
        self._core.context.trim(trunk.sequence, trunk.n_tokens)
        self._extending.remove(trunk)
        trunk.next_n = job.first_n
        jobs = list(trunk.jobs)
        trunk.jobs.clear()
        for failed in jobs:
            self._core.emit(AppendFailed(trunk.trunk_id, failed.last_n, str(error), failed.origin))
