"""A runtime that loads nothing and says what a test wants: the node around it is the real one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness import PATIENCE_S
from status_samples import ENGINE, PLACEMENT, PLANNING, QUESTIONS, READING, STREAM, VISION

from edge_vlm_ros.planning.plan import Objective
from edge_vlm_ros.runtime import RuntimeConfig, RuntimeListener
from edge_vlm_ros.runtime.status import EngineReading, StreamStatus


class StandInRuntime:
    """As far as the node uses a runtime. Readings may be replaced at any time."""

    def __init__(self, config: RuntimeConfig, listener: RuntimeListener) -> None:
        self.config = config
        self.listener = listener
        self.active = False
        self.questions = QUESTIONS
        self.vision = VISION
        self.placement = PLACEMENT
        self.readings = {
            engine.name: replace(READING, status=replace(ENGINE, name=engine.name))
            for engine in config.engines
        }
        self.ingestion = {s.name: config.ingest_engine(s) for s in config.streams}
        self.evicted: list[tuple[str, str]] = []
        self.evictable = True
        self.planning = PLANNING
        self.policy = (config.planning.policy, config.planning.objective)
        self.tracing = ""
        self.loading = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    # ---------------------------------------------------------------- life
    def load(self, progress: Callable[[str, float], None]) -> None:
        progress("language model", 0.4)
        self.loading.set()
        assert self.go_on.wait(PATIENCE_S)

    def activate(self) -> None:
        self.active = True

    def deactivate(self, timeout: float) -> None:
        self.active = False

    def close(self) -> None:
        self.active = False

    # ---------------------------------------------------------------- verbs
    def move_ingestion(self, stream: str, engine: str) -> None:
        engine = engine or next(iter(self.readings))  # what its policy chooses
        self._known(stream, engine)
        self.ingestion[stream] = engine

    def evict(self, stream: str, engine: str) -> bool:
        self._known(stream, engine)
        self.evicted.append((stream, engine))
        return self.evictable

    def set_policy(self, policy: str, objective: Objective) -> None:
        self.policy = (policy, objective)

    def start_trace(self, path: str) -> None:
        if self.tracing:
            raise ValueError(f"a trace is being written to {self.tracing}")
        self.tracing = path

    def stop_trace(self) -> int:
        if not self.tracing:
            raise ValueError("no trace is being written")
        self.tracing = ""
        return 17

    def _known(self, stream: str, engine: str) -> None:
        if stream not in self.ingestion:
            raise RuntimeError(f"no stream {stream!r}")
        if engine not in self.readings:
            raise RuntimeError(f"no engine {engine!r}")

    # ---------------------------------------------------------------- readings
    def stream_status(self, stream: str) -> StreamStatus:
        return replace(STREAM, stream=stream, ingest_engine=self.ingestion[stream])

    def engine_status(self) -> tuple[EngineReading, ...]:
        return tuple(self.readings.values())

    def placement_status(self) -> Any:
        return self.placement

    def planning_status(self) -> Any:
        return self.planning

    def vision_status(self) -> Any:
        return self.vision

    def question_status(self) -> Any:
        return self.questions


class StandIns:
    """Makes them, and keeps the newest: give it to the node as ``make_runtime``."""

    def __init__(self) -> None:
        self.newest: Any = None
        self.held = False
        """Whether the next one waits in ``load`` until its ``go_on`` is set."""

    def __call__(self, config: RuntimeConfig, listener: RuntimeListener) -> Any:
        self.newest = StandInRuntime(config, listener)
        if self.held:
            self.newest.go_on.clear()
        return self.newest
