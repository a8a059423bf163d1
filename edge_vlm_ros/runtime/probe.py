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
    AppendToTrunk,
    Boundary,
    DropTrunk,
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

from .engine_slots import EngineSlots
from .engine_talk import EngineTalk
from .prompt import PromptTemplate
from .status import PairProbe

_N_PREFIX = 48
_N_GREEDY = 8
_TRUNK = TrunkId("probe", 0)


class _Probing:
    def __init__(self, talk: EngineTalk, prompt: PromptTemplate, room: int) -> None:
        self._talk = talk
        tokens = prompt.open_tokens + prompt.ask_tokens or (0,)
        self._prefix = (tokens * _N_PREFIX)[:_N_PREFIX]
        self._prompt = (prompt.ask_tokens or tokens)[: max(1, room - 1)]
        self._n_greedy = max(1, min(_N_GREEDY, room - len(self._prompt)))
        self._start = Boundary(0, 0, bytes(32))
        self._stop = Boundary(1, len(self._prefix), b"probe".ljust(32, b"\0"))

    def probe(self) -> tuple[PairProbe, ...]:
        exported: dict[str, Snapshot] = {}
        tokens: dict[str, tuple[int, ...]] = {}
        for name in self._talk.names:
            segments = (TokenSegment(self._prefix),)
            self._talk.ask(name, AppendToTrunk(_TRUNK, 1, segments), VersionComputed)
            exported[name] = self._export(name)
            tokens[name] = self._greedy(name)
            self._talk.submit(name, DropTrunk(_TRUNK))
        return tuple(
            self._pair(
                source,
                destination,
                exported[source],
                tokens[source],
                _equal_rows(exported[source], exported[destination]),
            )
            for source, destination in permutations(self._talk.names, 2)
        )

    def _pair(
        self,
        source: str,
        destination: str,
        snapshot: Snapshot,
        expected: tuple[int, ...],
        same_kv: bool,
    ) -> PairProbe:
        try:
            command = ImportIntoTrunk(_TRUNK, self._start, self._stop, snapshot)
            self._talk.ask(destination, command, VersionComputed)
            again = self._export(destination)
            if not _equal_rows(snapshot, again):
                raise EngineError("what was imported comes out changed")
            found = self._greedy(destination)
        except EngineError as error:
            return PairProbe(source, destination, "incompatible", str(error))
        finally:
            self._talk.submit(destination, DropTrunk(_TRUNK))
        if found == expected:
            if same_kv:
                return PairProbe(source, destination, "equal", "")
            detail = "they compute other KV from the same tokens: the devices round differently"
            return PairProbe(source, destination, "close", detail)
        same = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), 0)
        detail = f"the next tokens differ from the {same + 1}th on: the devices round differently"
        return PairProbe(source, destination, "close", detail)

    def _export(self, name: str) -> Snapshot:
        command = ExportRange(0, _TRUNK, (self._start, self._stop))
        return self._talk.ask(name, command, RangeExported).snapshots[0]

    def _greedy(self, name: str) -> tuple[int, ...]:
        command = StartAnswer(
            0, _TRUNK, self._stop, self._prompt, self._n_greedy, SamplingParameters(), ()
        )
        return self._talk.ask(name, command, AnswerFinished).token_ids


def probe_pairs(
    slots: EngineSlots, inbox: queue.SimpleQueue[object], prompt: PromptTemplate, room: int
) -> tuple[PairProbe, ...]:
    """Move some KV between every two engines, both ways, and generate from it.

    Nobody else may use the engines or their ``inbox`` meanwhile; ``room`` are the cells of the
    longest answer. Raises EngineError when an engine does not work by itself.
    """
    if len(slots.names) < 2:
        return ()
    return _Probing(EngineTalk(slots, inbox), prompt, room).probe()


def _equal_rows(one: Snapshot, other: Snapshot) -> bool:
    a = parse_state_blob(one.blob, has_grids=one.header.layout.has_grids).by_position()
    b = parse_state_blob(other.blob, has_grids=other.header.layout.has_grids).by_position()
    rows_a: list[NDArray[Any]] = [a[0], *a[1], *a[2]]
    rows_b: list[NDArray[Any]] = [b[0], *b[1], *b[2]]
    return len(rows_a) == len(rows_b) and all(
        np.array_equal(x, y) for x, y in zip(rows_a, rows_b, strict=True)
    )
