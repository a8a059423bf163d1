"""Asks engines that nobody else uses yet, and waits for what they say."""

from __future__ import annotations

import queue
from typing import TypeVar

from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AppendFailed,
    Command,
    EngineFailed,
    ExportFailed,
    RangeExported,
    VersionComputed,
)
from edge_vlm_ros.engines.step_record import StepRecord

from .engine_slots import EngineSaid, EngineSlots

Done = VersionComputed | RangeExported | AnswerFinished
"""What an engine says when it has done what it was told."""

_D = TypeVar("_D", VersionComputed, RangeExported, AnswerFinished)
_TIMEOUT_S = 120.0


class EngineTalk:
    """Nobody else may use the engines or take from their ``inbox`` meanwhile."""

    def __init__(self, slots: EngineSlots, inbox: queue.SimpleQueue[object]) -> None:
        self._slots = slots
        self._inbox = inbox

    @property
    def names(self) -> tuple[str, ...]:
        return self._slots.names

    def submit(self, name: str, *commands: Command) -> None:
        engine = self._slots.engine(name)
        for command in commands:
            engine.submit(command)

    def wait(self) -> tuple[str, Done]:
        """The next thing done, and by which engine. Raises EngineError when it failed, or when no
        engine says anything for two minutes."""
        while True:
            try:
                said = self._inbox.get(timeout=_TIMEOUT_S)
            except queue.Empty:
                names = ", ".join(self.names)
                raise EngineError(f"nothing is heard from the engines {names}") from None
            if not isinstance(said, EngineSaid):
                continue
            event = said.event
            if isinstance(event, EngineFailed):
                raise EngineError(f"engine {said.engine} failed: {event.error}")
            if isinstance(event, AppendFailed | ExportFailed):
                raise EngineError(event.error)
            if isinstance(event, AnswerFinished) and event.error:
                raise EngineError(event.error)
            if isinstance(event, VersionComputed | RangeExported | AnswerFinished):
                return said.engine, event

    def ask(self, name: str, command: Command, expected: type[_D]) -> _D:
        """Give one command to an engine that has nothing else to do, and wait until it is done.
        Raises EngineError as ``wait``."""
        self.submit(name, command)
        _, event = self.wait()
        if not isinstance(event, expected):
            raise EngineError(f"engine {name}: unexpected {event!r}")
        return event

    def take_steps(self, name: str) -> list[StepRecord]:
        """What an engine has done since the last call, oldest first."""
        return self._slots.engine(name).take_steps()

    def n_cells(self, name: str) -> int:
        return self._slots.engine(name).n_cells

    def batching(self, name: str) -> bool:
        return self._slots.engine(name).batching
