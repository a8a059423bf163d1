"""Before the first frame: can each pair of engines exchange KV, and do they then say the same?"""

from __future__ import annotations

import queue
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AppendFailed,
    AppendToTrunk,
    Boundary,
    Command,
    DropTrunk,
    EngineFailed,
    ExportFailed,
    ExportRange,
    ImportIntoTrunk,
    RangeExported,
    StartAnswer,
    TokenSegment,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.engines.snapshot import Snapshot
from edge_vlm_ros.engines.state_blob import parse_state_blob

from .engine_slots import EngineSaid, EngineSlots
from .prompt import PromptTemplate
from .status import PairProbe

_N_PREFIX = 48
_N_GREEDY = 8
_TIMEOUT_S = 120.0
_ENDS = (VersionComputed, AppendFailed, RangeExported, ExportFailed, AnswerFinished, EngineFailed)
_TRUNK = TrunkId("probe", 0)


class _Probing:
    """Talks to engines that nobody else uses yet, one command at a time."""

    def __init__(
        self,
        slots: EngineSlots,
        inbox: queue.SimpleQueue[object],
        prompt: PromptTemplate,
        room: int,
    ) -> None:
        self._slots = slots
        self._inbox = inbox
        tokens = prompt.open_tokens + prompt.ask_tokens or (0,)
        self._prefix = (tokens * _N_PREFIX)[:_N_PREFIX]
        self._prompt = (prompt.ask_tokens or tokens)[: max(1, room - 1)]
        self._n_greedy = max(1, min(_N_GREEDY, room - len(self._prompt)))
        self._start = Boundary(0, 0, bytes(32))
        self._stop = Boundary(1, len(self._prefix), b"probe".ljust(32, b"\0"))

    def probe(self) -> tuple[PairProbe, ...]:
        exported: dict[str, Snapshot] = {}
        tokens: dict[str, tuple[int, ...]] = {}
        for name in self._slots.names:
            segments = (TokenSegment(self._prefix),)
            self._ask(name, AppendToTrunk(_TRUNK, 1, segments), VersionComputed)
            exported[name] = self._export(name)
            tokens[name] = self._greedy(name)
            self._slots.engine(name).submit(DropTrunk(_TRUNK))
        return tuple(
            self._pair(source, destination, exported[source], tokens[source])
            for source, destination in permutations(self._slots.names, 2)
        )

    def _pair(
        self, source: str, destination: str, snapshot: Snapshot, expected: tuple[int, ...]
    ) -> PairProbe:
        try:
            command = ImportIntoTrunk(_TRUNK, self._start, self._stop, snapshot)
            self._ask(destination, command, VersionComputed)
            again = self._export(destination)
            if not _equal_rows(snapshot, again):
                raise EngineError("what was imported comes out changed")
            found = self._greedy(destination)
        except EngineError as error:
            return PairProbe(source, destination, "incompatible", str(error))
        finally:
            self._slots.engine(destination).submit(DropTrunk(_TRUNK))
        if found == expected:
            return PairProbe(source, destination, "equal", "")
        same = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), 0)
        detail = f"the next tokens differ from the {same + 1}th on: the devices round differently"
        return PairProbe(source, destination, "close", detail)

    def _export(self, name: str) -> Snapshot:
        command = ExportRange(0, _TRUNK, (self._start, self._stop))
        event = self._ask(name, command, RangeExported)
        assert isinstance(event, RangeExported)
        return event.snapshots[0]

    def _greedy(self, name: str) -> tuple[int, ...]:
        command = StartAnswer(
            0, _TRUNK, self._stop, self._prompt, self._n_greedy, SamplingParameters(), ()
        )
        event = self._ask(name, command, AnswerFinished)
        assert isinstance(event, AnswerFinished)
        if event.error:
            raise EngineError(event.error)
        return event.token_ids

    def _ask(self, name: str, command: Command, expected: type) -> object:
        self._slots.engine(name).submit(command)
        while True:
            try:
                said = self._inbox.get(timeout=_TIMEOUT_S)
            except queue.Empty:
                raise EngineError(f"engine {name} does not answer") from None
            if not isinstance(said, EngineSaid) or not isinstance(said.event, _ENDS):
                continue
            if isinstance(said.event, expected):
                return said.event
            raise EngineError(getattr(said.event, "error", f"unexpected {said.event!r}"))


def probe_pairs(
    slots: EngineSlots, inbox: queue.SimpleQueue[object], prompt: PromptTemplate, room: int
) -> tuple[PairProbe, ...]:
    """Move some KV between every two engines, both ways, and generate from it.

    Nobody else may use the engines or their ``inbox`` meanwhile; ``room`` are the cells of the
    longest answer. Raises EngineError when an engine does not work by itself.
    """
    return _Probing(slots, inbox, prompt, room).probe() if len(slots.names) > 1 else ()


def _equal_rows(one: Snapshot, other: Snapshot) -> bool:
    a = parse_state_blob(one.blob).by_position()
    b = parse_state_blob(other.blob).by_position()
    rows_a: list[NDArray[Any]] = [a[0], *a[1], *a[2]]
    rows_b: list[NDArray[Any]] = [b[0], *b[1], *b[2]]
    return len(rows_a) == len(rows_b) and all(
        np.array_equal(x, y) for x, y in zip(rows_a, rows_b, strict=True)
    )
