"""An engine whose steps cost what a formula says, on a clock of its own."""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AppendToTrunk,
    DropTrunk,
    EngineFailed,
    EventSink,
    ExportRange,
    FinishReason,
    ForkTrunk,
    ImportIntoTrunk,
    RangeExported,
    StartAnswer,
    TokenSegment,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.step_record import Activity, StepLog, StepRecord
from edge_vlm_ros.planning.costs import EngineCosts


class Clock:
    """Time that passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FormulaEngine:
    """Does what it is told when its events are waited for (see Inbox).

    ``batching`` as in LanguageEngine. ``ends_at_once``: greedy answers have one token. ``fails``:
    the first command ends it.
    """

    def __init__(
        self,
        config: EngineConfig,
        costs: EngineCosts,
        emit: EventSink,
        *,
        n_cells: int = 4096,
        batching: bool = True,
        ends_at_once: bool = False,
        fails: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.name, self.n_cells, self.batching = config.name, n_cells, batching
        self.trunks: dict[TrunkId, int] = {}
        self.most_cells = 0
        self._config, self._costs, self._emit = config, costs, emit
        self._ends_at_once, self._fails = ends_at_once, fails
        self._clock = clock or Clock()
        self._commands: list[Any] = []
        self._steps = StepLog()

    def submit(self, command: Any) -> None:
        self._commands.append(command)

    def take_steps(self) -> list[StepRecord]:
        return self._steps.take()

    def status(self) -> Any:
        return SimpleNamespace(
            name=self.name,
            device="cpu",
            memory_weights_bytes=10**7,
            memory_kv_bytes=10**6,
            cells=self.n_cells,
        )

    def close(self) -> None:
        pass

    def work(self) -> None:
        """Carry out all commands."""
        commands, self._commands = self._commands, []
        answers = [c for c in commands if isinstance(c, StartAnswer)]
        for command in commands:
            if self._fails:
                self._emit(EngineFailed(self.name, "the device is gone"))
                return
            if not isinstance(command, StartAnswer):
                self._carry_out(command)
            self.most_cells = max(self.most_cells, sum(self.trunks.values()))
        self._answer(answers)

    def _carry_out(self, command: Any) -> None:
        match command:
            case AppendToTrunk(trunk, n, segments):
                self._append(trunk, segments)
                self._emit(VersionComputed(trunk, n, self.trunks[trunk], 0.0))
            case ForkTrunk(source, trunk, stop):
                assert self.trunks[source] >= stop.tokens and trunk not in self.trunks
                self.trunks[trunk] = stop.tokens
                self._emit(VersionComputed(trunk, stop.n, stop.tokens, 0.0))
            case ExportRange(request, trunk, (start, stop)):
                assert self.trunks[trunk] >= stop.tokens
                n_bytes = 100 * (stop.tokens - start.tokens)
                self._log(Activity.EXPORT, self._costs.export.seconds(n_bytes), 0, 0, n_bytes)
                snapshot: Any = SimpleNamespace(n_bytes=n_bytes)
                self._emit(RangeExported(request, (snapshot,), 0.0))
            case ImportIntoTrunk(trunk, start, stop, snapshot):
                assert self.trunks.get(trunk, 0) == start.tokens
                self.trunks[trunk] = stop.tokens
                n_bytes = snapshot.n_bytes
                self._log(Activity.IMPORT, self._costs.import_.seconds(n_bytes), 0, 0, n_bytes)
                self._emit(VersionComputed(trunk, stop.n, stop.tokens, 0.0))
            case DropTrunk(trunk):
                self.trunks.pop(trunk, None)

    def _append(self, trunk: TrunkId, segments: tuple[Any, ...]) -> None:
        for segment in segments:
            assert isinstance(segment, TokenSegment)
            tokens, chunk = len(segment.tokens), self._config.chunk_tokens
            while tokens:
                rows, history = min(tokens, chunk), self.trunks.get(trunk, 0)
                self._log(
                    Activity.INGEST, self._costs.prefill.seconds(rows, history), rows, history
                )
                self.trunks[trunk] = history + rows
                tokens -= rows

    def _answer(self, answers: list[StartAnswer]) -> None:
        for answer in answers:
            rows, history = len(answer.prompt), answer.start.tokens
            assert self.trunks[answer.trunk] >= history
            self._log(Activity.PREFILL, self._costs.prefill.seconds(rows, history), rows, history)
        groups = [answers] if self.batching and answers else [[answer] for answer in answers]
        for group in groups:
            n, first = len(group), group[0]
            begin = first.start.tokens + len(first.prompt)
            short = self._ends_at_once and first.sampling.is_greedy
            for history in range(begin, begin if short else begin + first.max_tokens - 1):
                self._log(Activity.DECODE, self._costs.decode.call_s(n, history), n, history)
        for answer in answers:
            reason = FinishReason.LENGTH
            self._emit(AnswerFinished(answer.answer_id, reason, "", (1,), "", len(answers)))

    def _log(
        self, activity: Activity, seconds: float, rows: int, history: int, n_bytes: int = 0
    ) -> None:
        self._steps.add(
            StepRecord(activity, self._clock.now, seconds, rows, rows, history, n_bytes)
        )
        self._clock.now += seconds


class Inbox(queue.SimpleQueue):  # type: ignore[type-arg]
    """Has the engines work when there is nothing in it."""

    def __init__(self) -> None:
        super().__init__()
        self.work: Callable[[], None] = lambda: None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            self.work()
        return super().get(block=False)
