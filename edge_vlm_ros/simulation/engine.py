"""A language engine on virtual time: the real one's parts on a cache that holds nothing.

What it does step by step, in which order, and what it says, is the code of the real engine. Only
what is computed is missing: a step takes as long as the costs say.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.core import EngineCore
from edge_vlm_ros.engines.errors import OtherHistoryError
from edge_vlm_ros.engines.native import TokenSampler
from edge_vlm_ros.engines.protocol import Command, EngineStatus, Event, EventSink, StartAnswer
from edge_vlm_ros.engines.snapshot import Layout, Snapshot, SnapshotHeader
from edge_vlm_ros.engines.snapshot_check import check_layout
from edge_vlm_ros.engines.step_record import Activity, StepLog, StepRecord
from edge_vlm_ros.engines.step_scheduler import StepKind
from edge_vlm_ros.engines.work import EngineWork

from .answer_tokens import AnswerTokens, CountingSampler, SilentVocabulary
from .context import VirtualContext
from .machine import Machine

LAYOUT = Layout(
    architecture="simulated",
    model_digest=bytes(32),
    kv_type="q8_0",
    flash_attention=True,
    kv_rotation=False,
    n_layer=1,
    n_embd_k=64,
    n_embd_v=64,
    rope_type=0,
    rope_freq_base=10000.0,
    rope_freq_scale=1.0,
)


@dataclass(frozen=True)
class EngineShape:
    """Sizes of a simulated engine; for the bounds see LlamaCppEngine."""

    n_ctx: int
    cell_bytes: int
    """KV of one token."""
    batching: bool
    max_trunks: int
    max_branches: int
    max_exports: int
    answer_cells: int


class FullLog(StepLog):
    """Keeps all steps, for whoever looks back at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        super().add(record)
        self.records.append(record)


class _Core(EngineCore):
    """Answers of drawn length; snapshots of right size without content."""

    answer_tokens: AnswerTokens

    def sampler(self, command: StartAnswer) -> TokenSampler:
        return CountingSampler(self.answer_tokens(command))

    def seal(self, header: SnapshotHeader, blob: NDArray[np.uint8]) -> Snapshot:
        return Snapshot(header, blob, 0)

    def check(self, snapshot: Snapshot, wanted: SnapshotHeader) -> None:
        check_layout(snapshot.header.layout, wanted.layout)
        if snapshot.header != wanted:
            raise OtherHistoryError("the snapshot is of another range or history")


class SimulatedEngine:
    """Implements the LanguageEngine protocol on a Machine.

    ``emit`` is called at the virtual time at which the real engine would say it: at the end of a
    step. ``steps`` keeps everything it has done.
    """

    def __init__(
        self,
        machine: Machine,
        config: EngineConfig,
        shape: EngineShape,
        answer_tokens: AnswerTokens,
        emit: EventSink,
    ) -> None:
        self.config = config
        self.steps = FullLog()
        self._machine = machine
        self._shape = shape
        self._post = emit
        self._spent = 0.0
        self._activity: Activity | None = None
        self._commands: deque[Command] = deque()
        self._is_due = False
        self._closed = False
        context = VirtualContext(
            shape.n_ctx,
            shape.cell_bytes,
            machine.costs.engines[config.name],
            self._spend,
            lambda: self._work.doing is StepKind.DECODE,
        )
        self._core = _Core(
            SilentVocabulary(),
            context,
            LAYOUT,
            config,
            batching=shape.batching,
            max_trunks=shape.max_trunks,
            max_branches=shape.max_branches,
            max_exports=shape.max_exports,
            answer_cells=shape.answer_cells,
            stop_tokens=frozenset(),
            emit=self._emit,
            clock=self._now,
        )
        self._core.answer_tokens = answer_tokens
        self._core.steps = self.steps
        self._work = EngineWork(self._core)

    # ---------------------------------------------------------------- LanguageEngine
    @property
    def name(self) -> str:
        return self.config.name

    @property
    def n_cells(self) -> int:
        return self._shape.n_ctx

    @property
    def batching(self) -> bool:
        return self._shape.batching

    @property
    def layout(self) -> Layout:
        return LAYOUT

    def submit(self, command: Command) -> None:
        self._commands.append(command)
        if not self._is_due:
            self._call_at(self._machine.clock())

    def status(self) -> EngineStatus:
        return self._work.status(
            device=self.config.device,
            model="simulated",
            weights_bytes=0,
            kv_bytes=self.n_cells * self._shape.cell_bytes,
            unordered=0,
        )

    def take_steps(self) -> list[StepRecord]:
        return self.steps.take()

    def close(self) -> None:
        self._closed = True

    # ---------------------------------------------------------------- virtual time
    def _now(self) -> float:
        """Within a step the engine's clock runs ahead of the machine's."""
        return self._machine.clock() + self._spent

    def _spend(self, activity: Activity, seconds: float) -> None:
        self._activity = activity
        self._spent += self._machine.slowed(self.name, activity, seconds)

    def _emit(self, event: Event) -> None:
        if self._spent:
            self._machine.events.at(self._now(), lambda: self._say(event))
        else:
            self._say(event)

    def _say(self, event: Event) -> None:
        if not self._closed:
            self._post(event)

    def _call_at(self, time: float) -> None:
        self._is_due = True
        self._machine.events.at(time, self._turn)

    def _turn(self) -> None:
        """At the end of a step, or when something came up: take commands, begin the next step.

        The next step begins before anybody has reacted to the last one, as it does on a thread.
        """
        self._machine.end(self.name)
        self._is_due = False
        if self._closed:
            return
        self._spent, self._activity = 0.0, None
        while self._commands:
            self._work.carry_out(self._commands.popleft())
        while self._work.is_there and not self._spent:
            self._work.step()
        if self._spent:
            end, activity = self._now(), self._activity
            self._spent = 0.0
            if activity is not None:
                self._machine.begin(self.name, activity)
            self._call_at(end)
