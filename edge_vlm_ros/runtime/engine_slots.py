"""The configured engines: which of them work, and when a failed one is started again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.engines.protocol import EngineStatus, Event, EventSink, LanguageEngine

_logger = logging.getLogger(__name__)

MakeEngine = Callable[[EngineConfig, EventSink], LanguageEngine]
"""Loads what an engine needs and starts it; may take seconds. Raises EngineError."""


@dataclass(frozen=True, eq=False)
class EngineSaid:
    """An event of an engine; ``start`` counts how often the engine had been started."""

    engine: str
    start: int
    event: Event


@dataclass(frozen=True, eq=False)
class EngineStarted:
    """A failed engine works again, or (``engine`` is None) could not be started."""

    name: str
    engine: LanguageEngine | None
    error: str


@dataclass
class EngineSlot:
    """One configured engine. Written by the coordinator's thread only, once it runs."""

    config: EngineConfig
    engine: LanguageEngine | None = None
    state: str = "starting"
    error: str = ""
    failures: int = 0
    in_a_row: int = 0
    retry_at: float | None = None
    start: int = 0
    last_status: EngineStatus | None = None
    cell_bytes: int = 0
    """Bytes of KV that a token takes; 0 until asked for."""
    incompatible: set[str] = field(default_factory=set)
    """Engines whose KV this one cannot import."""
    equal: set[str] = field(default_factory=set)
    """Engines that compute the same bits as this one."""

    @property
    def ready(self) -> bool:
        return self.state == "ready"


class EngineSlots:
    """Makes engines, and makes them anew after a failure.

    ``post`` takes the messages EngineSaid and EngineStarted. A failed engine is started again
    after ``retry_s``, then after twice as long each time without success, up to ``max_retry_s``.
    """

    def __init__(
        self,
        configs: Iterable[EngineConfig],
        make: MakeEngine,
        post: Callable[[object], None],
        retry_s: float,
        max_retry_s: float,
    ) -> None:
        self._make = make
        self._post = post
        self._retry_s = retry_s
        self._max_retry_s = max_retry_s
        self._slots = {config.name: EngineSlot(config) for config in configs}
        self._background: list[threading.Thread] = []
        self._closing = False

    def __iter__(self) -> Iterator[EngineSlot]:
        return iter(self._slots.values())

    def __getitem__(self, name: str) -> EngineSlot:
        return self._slots[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._slots)

    @property
    def ready(self) -> list[EngineSlot]:
        return [slot for slot in self if slot.ready]

    def engine(self, name: str) -> LanguageEngine:
        """The running engine ``name``. Raises KeyError while there is none."""
        engine = self._slots[name].engine
        if engine is None:
            raise KeyError(f"engine {name!r} is not running")
        return engine

    def cell_bytes(self, name: str) -> int:
        """Bytes of KV that a token takes on a running engine."""
        slot = self._slots[name]
        if not slot.cell_bytes:
            engine = self.engine(name)
            slot.cell_bytes = engine.status().memory_kv_bytes // engine.n_cells
        return slot.cell_bytes

    def start_all(self) -> None:
        """Make every engine, one after the other. Raises EngineError."""
        for slot in self:
            slot.engine = self._make(slot.config, self._sink(slot))
            slot.state = "ready"

    def can_import(self, source: str, destination: str) -> bool:
        return source not in self._slots[destination].incompatible

    def are_equal(self, one: str, other: str) -> bool:
        """Whether both compute the same bits from the same tokens."""
        return one in self._slots[other].equal

    # ---------------------------------------------------------------- coordinator's thread
    def is_current(self, said: EngineSaid) -> bool:
        """False for the last words of an engine that has failed meanwhile."""
        slot = self._slots[said.engine]
        return slot.ready and slot.start == said.start

    def failed(self, name: str, error: str, now: float) -> None:
        slot = self._slots[name]
        if slot.engine is not None:
            # In the background: its thread may hang in a native call.
            thread = threading.Thread(target=slot.engine.close, name=f"close-{name}", daemon=True)
            self._background.append(thread)
            thread.start()
        slot.engine = None
        slot.state, slot.error = "failed", error
        slot.failures += 1
        slot.in_a_row += 1
        wait = min(self._retry_s * 2 ** (slot.in_a_row - 1), self._max_retry_s)
        slot.retry_at = now + wait

    def seconds_to_retry(self, now: float) -> float | None:
        times = [slot.retry_at for slot in self if slot.retry_at is not None]
        return max(0.0, min(times) - now) if times else None

    def retry_due(self, now: float) -> None:
        """Start what is due, each in a thread of its own: loading takes long."""
        self._background = [thread for thread in self._background if thread.is_alive()]
        for slot in self:
            if slot.retry_at is None or slot.retry_at > now or self._closing:
                continue
            slot.retry_at = None
            slot.state = "starting"
            slot.start += 1
            thread = threading.Thread(
                target=self._restart, args=(slot,), name=f"start-{slot.config.name}", daemon=True
            )
            self._background.append(thread)
            thread.start()

    def started(self, message: EngineStarted, now: float) -> bool:
        """Take note of a finished start; returns whether the engine works."""
        slot = self._slots[message.name]
        if message.engine is None:
            self.failed(message.name, message.error, now)
            return False
        slot.engine, slot.state, slot.error = message.engine, "ready", ""
        return True

    def worked(self, name: str) -> None:
        """The engine has done something: the next failure is the first in a row again."""
        self._slots[name].in_a_row = 0

    def close(self) -> None:
        """Stop all engines, those that have failed too, and wait for starts under way."""
        self._closing = True
        for thread in self._background:
            thread.join()
        for slot in self:
            if slot.engine is not None:
                slot.engine.close()

    # ---------------------------------------------------------------- internals
    def _sink(self, slot: EngineSlot) -> EventSink:
        start, name = slot.start, slot.config.name
        return lambda event: self._post(EngineSaid(name, start, event))

    def _restart(self, slot: EngineSlot) -> None:
        name = slot.config.name
        try:
            engine = self._make(slot.config, self._sink(slot))
        except EngineError as error:
            self._post(EngineStarted(name, None, str(error)))
            return
        except Exception as error:
            _logger.exception("engine %s cannot be started", name)
            self._post(EngineStarted(name, None, f"{type(error).__name__}: {error}"))
            return
        if self._closing:
            engine.close()
            return
        self._post(EngineStarted(name, engine, ""))
