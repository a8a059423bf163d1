"""Who may take how many cells of an engine for histories, and who has to wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from .eviction import victims
from .residency import ResidencyTable, TrunkRecord

IDLE_S = 10.0
"""A trunk that was not used for so long may go for the frames of another stream."""


class CellBudget:
    """Lets trunks grow, and has others dropped for them with ``evict``.

    ``capacity`` gives the cells of an engine that histories may take together; ``is_ingest`` says
    whether a trunk is the one that its stream grows. A trunk that an accepted question needs is
    never dropped. Questions get room in the order of their arrival, and before frames that no
    question waits for; frames displace nothing that another stream is using.
    """

    def __init__(
        self,
        table: ResidencyTable,
        capacity: Callable[[str], int],
        is_ingest: Callable[[TrunkRecord], bool],
        evict: Callable[[TrunkRecord], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._capacity = capacity
        self._is_ingest = is_ingest
        self._evict = evict
        self._clock = clock
        self._waiting: dict[str, set[int]] = {}
        self._frames_wait = False
        self._freed = False
        self._idle_at: float | None = None

    def make_room(self, record: TrunkRecord, tokens: int, question: int | None) -> bool:
        """Whether a trunk may grow to ``tokens``, for a question (by answer id) or for frames.

        A question that may not is remembered until it may, or until ``leave``.
        """
        waiting = self._waiting.setdefault(record.engine, set())
        extra = tokens - record.cells
        ahead = any(question is None or other < question for other in waiting)
        chosen = None if extra > 0 and ahead else self._victims(record, extra, question)
        if chosen is None:
            if question is None:
                self._frames_wait = True
                self._idle_at = self._next_idle(record.engine)
            else:
                waiting.add(question)
            return False
        for victim in chosen:
            self._evict(victim)
        if question is not None:
            waiting.discard(question)
        return True

    def has_spare(self, engine: str, cells: int) -> bool:
        """Whether trunks may grow by ``cells`` without anybody making or waiting for room."""
        free = self._capacity(engine) - self._table.cells(engine)
        return not self._waiting.get(engine) and cells <= free

    def leave(self, question: int, engine: str | None) -> None:
        """The question waits no more for room on ``engine``; None: anywhere."""
        for name, waiting in self._waiting.items():
            if engine in (None, name):
                waiting.discard(question)

    def note_freed(self) -> None:
        """Cells were given back, or may be taken now."""
        self._freed = True

    def seconds_to_retry(self, now: float) -> float | None:
        """When a trunk will have been idle for long enough to go for frames that wait."""
        return None if self._idle_at is None else max(0.0, self._idle_at - now)

    def take_retry(self) -> bool:
        """Whether somebody waits for room and some was given back since the last call, or a trunk
        has become idle."""
        if self._idle_at is not None and self._idle_at <= self._clock():
            self._freed, self._idle_at = True, None
        retry = self._freed and (self._frames_wait or any(self._waiting.values()))
        self._freed = False
        if retry:
            self._frames_wait = False
        return retry

    def _victims(
        self, record: TrunkRecord, extra: int, question: int | None
    ) -> list[TrunkRecord] | None:
        engine = record.engine
        free = self._capacity(engine) - self._table.cells(engine)
        return victims(
            [other for other in self._table.on_engine(engine) if other is not record],
            extra - free,
            is_copy=lambda other: not self._is_ingest(other),
            may_go=lambda other: question is not None or self._may_go_for_frames(other, record),
        )

    def _next_idle(self, engine: str) -> float | None:
        now = self._clock()
        # A moment more: at the very instant a trunk is not idle yet.
        times = [record.last_use + IDLE_S + 0.01 for record in self._table.on_engine(engine)]
        return min((time for time in times if time > now), default=None)

    def _may_go_for_frames(self, victim: TrunkRecord, grower: TrunkRecord) -> bool:
        one_stream = victim.trunk.stream == grower.trunk.stream
        older = one_stream and victim.trunk.epoch < grower.trunk.epoch
        idle = self._clock() - victim.last_use > IDLE_S
        return older or idle or not self._is_ingest(victim)
