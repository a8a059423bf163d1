"""The public API without ROS: streams in, questions in, answers out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

import numpy as np

from edge_vlm_ros.history import Version
from edge_vlm_ros.model_profile import verify_files
from edge_vlm_ros.planning.costs import CostModel
from edge_vlm_ros.planning.plan import Objective
from edge_vlm_ros.planning.policies import make_policy
from edge_vlm_ros.vision.encoder import RgbImage
from edge_vlm_ros.vision.opening import OpenedEncoder, open_encoder
from edge_vlm_ros.vision.self_test import SelfTestResult

from .answer import Answer, AskOptions, QuestionRejected
from .assembly import Parts, assemble
from .config import RuntimeConfig
from .coordinator import Coordinator
from .engine_maker import EngineMaker
from .listener import RuntimeListener
from .messages import Call, FrameArrived, InvalidFrame, Stop
from .readings import read_engines, read_placement
from .status import (
    EngineReading,
    PlacementStatus,
    PlanningStatus,
    QuestionStatus,
    StreamStatus,
    VisionStatus,
)
from .stream import StreamState

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
CLOSE_TIMEOUT_S = 5.0
"""How long ``close`` waits for running answers to end by themselves."""

LoadProgress = Callable[[str, float], None]
"""Called with what is being loaded and how far it is, 0 to 1."""


class UnknownStreamError(KeyError):
    """No stream of that name is configured."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownEngineError(KeyError):
    """No engine of that name is configured."""

    def __str__(self) -> str:
        return str(self.args[0])


class NotActiveError(RuntimeError):
    """The runtime is not loaded, or not active."""


class Runtime:
    """Watches streams and answers questions about them.

    Life: ``load`` (models, threads), ``activate``, use, ``deactivate``, ``close``. Frames and
    questions are taken from any thread while it is active.
    """

    def __init__(self, config: RuntimeConfig, listener: RuntimeListener | None = None) -> None:
        self.config = config
        self._listener = listener or RuntimeListener()
        self._coordinator: Coordinator | None = None
        self._names = frozenset(stream.name for stream in config.streams)
        self._parts: Parts
        self._thread: threading.Thread | None = None
        self._life = threading.Lock()  # one load or close at a time
        self._gate = threading.Lock()  # closed before the coordinator's last message

    # ---------------------------------------------------------------- life
    def load(self, progress: LoadProgress | None = None) -> None:
        """Load the models and start the threads. Takes seconds to minutes.

        Raises ProfileError, ConfigError, EngineError or EncoderError; nothing stays loaded then.
        """
        report = progress or (lambda what, fraction: None)
        profile = self.config.profile
        with self._life, ExitStack() as undo:
            if self._coordinator is not None:
                raise RuntimeError("the runtime is loaded already")
            report("checking files", 0.0)
            verify_files(profile)
            self._maker = EngineMaker(
                profile,
                self.config.engines,
                lambda fraction: report("language model", fraction),
            )
            undo.callback(self._maker.close)
            report("vision encoder", 0.0)
            encoder = open_encoder(
                profile.encoder,
                threads=self.config.vision.n_threads,
                language=profile.language.file,
            )
            undo.callback(encoder.close)
            report("language engines", 0.0)
            self._start(encoder, undo, report)
            undo.pop_all()
        report("ready", 1.0)

    def _start(self, encoder: OpenedEncoder, undo: ExitStack, report: LoadProgress) -> None:
        parts = assemble(self.config, self._maker, encoder, self._listener, undo, report)
        self._parts = parts
        self.cache = parts.cache
        thread = threading.Thread(target=parts.coordinator.run, name="coordinator", daemon=True)
        thread.start()
        self._thread = thread
        self._coordinator = parts.coordinator

    def activate(self) -> None:
        """Take frames and questions from now on. Raises NotActiveError before ``load``."""
        coordinator = self._loaded()
        self._on_loop(lambda: setattr(coordinator, "active", True))

    def deactivate(self, timeout: float = 5.0) -> None:
        """Take no more frames and questions, and end the running answers with what they have.

        Raises TimeoutError when an engine does not end them within ``timeout`` seconds.
        """
        coordinator = self._loaded()
        idle = threading.Event()
        self._on_loop(lambda: coordinator.end_all(idle.set))
        _wait_until(idle, timeout)

    def close(self) -> None:
        """Stop the threads and free the models. Does nothing when they are not loaded."""
        with self._life:
            with self._gate:
                coordinator, self._coordinator = self._coordinator, None
            if coordinator is None:
                return
            idle = threading.Event()
            coordinator.inbox.put(Call(lambda: coordinator.end_all(idle.set), Future()))
            try:
                _wait_until(idle, CLOSE_TIMEOUT_S)
            except TimeoutError:
                _logger.warning("closing with answers still running")
            self._parts.slots.close()
            self._parts.vision.close()
            coordinator.inbox.put(Stop())
            if self._thread is not None:
                self._thread.join()
            self._maker.close()

    @property
    def active(self) -> bool:
        coordinator = self._coordinator  # read once: another thread may close
        return coordinator is not None and coordinator.active

    @property
    def stream_names(self) -> tuple[str, ...]:
        return tuple(stream.name for stream in self.config.streams)

    # ---------------------------------------------------------------- verbs
    def add_frame(
        self, stream: str, rgb: RgbImage, stamp_ns: int, received_at: float | None = None
    ) -> None:
        """Register a camera frame: uint8 [H, W, 3] RGB, not written to afterwards.

        Frames and questions take effect in the order in which they are handed over.
        ``received_at`` is the reading of ``time.monotonic()`` at arrival, now by default. Raises
        UnknownStreamError, NotActiveError, or ValueError for anything but such pixels.
        """
        self._check_stream(stream)
        if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3 or not rgb.size:
            raise ValueError(f"a frame is uint8 [H, W, 3], not {rgb.dtype} {list(rgb.shape)}")
        if not self.active:
            raise NotActiveError("the runtime is not active: activate it first")
        now = time.monotonic() if received_at is None else received_at
        self._post(FrameArrived(stream, rgb, stamp_ns, now))

    def note_invalid_frame(self, stream: str) -> None:
        """Count a camera message that could not be converted. Raises UnknownStreamError."""
        self._check_stream(stream)
        self._post(InvalidFrame(stream))

    def ask(self, stream: str, question: str, options: AskOptions | None = None) -> Answer:
        """Ask a question; it is accepted at once or QuestionRejected is raised."""
        arrived = time.monotonic()
        try:
            coordinator = self._loaded()
            return self._on_loop(
                lambda: coordinator.ask(stream, question, options or AskOptions(), arrived)
            )
        except NotActiveError as error:
            text = "no model is loaded: configure the node first"
            raise QuestionRejected("inactive", text) from error

    def reset(self, stream: str) -> Version:
        """Forget everything about a stream. Raises UnknownStreamError."""
        return self._on_loop(self._stream(stream).clear)

    def commit(self, answer_id: int) -> Version:
        """Append a finished answer to its history. Raises CommitError or HistoryFull."""
        coordinator = self._loaded()
        return self._on_loop(lambda: coordinator.committing.commit(answer_id))

    def move_ingestion(self, stream: str, engine: str) -> None:
        """Have ``engine`` compute the frames of a stream from now on; it takes over what has been
        computed. With an empty name the policy chooses. Raises UnknownStreamError or
        UnknownEngineError."""
        self._check_stream(stream)
        if engine:
            self._check_engine(engine)
        coordinator = self._loaded()
        self._on_loop(lambda: coordinator.move_ingestion(stream, engine))

    def evict(self, stream: str, engine: str) -> int:
        """Drop what an engine holds of a stream, except what accepted questions need; returns the
        number of trunks dropped. What is needed again is imported or replayed. Raises
        UnknownStreamError or UnknownEngineError."""
        self._check_stream(stream)
        self._check_engine(engine)
        coordinator = self._loaded()
        return self._on_loop(lambda: coordinator.trunks.evict(stream, engine))

    def set_policy(self, policy: str, objective: Objective) -> None:
        """Place questions another way from now on. Raises ValueError."""
        coordinator = self._loaded()
        names = tuple(engine.name for engine in self.config.engines)
        made = make_policy(policy, names, self.stream_names, objective)
        self._on_loop(lambda: coordinator.planner.use(made, objective))

    def start_trace(self, path: str) -> None:
        """Write every step of every engine to a new file in Chrome's trace format from now on.

        Raises OSError when the file cannot be made, ValueError when a trace is being written or
        the path is not absolute."""
        coordinator = self._loaded()
        self._on_loop(lambda: coordinator.tracing.start(path))

    def stop_trace(self) -> int:
        """End the trace; returns the number of events in it. Raises ValueError without one."""
        return self._on_loop(self._loaded().tracing.stop)

    # ---------------------------------------------------------------- readings
    def describe(self, stream: str) -> list[str]:
        """One line per item of the stream's history. Raises UnknownStreamError."""
        return self._on_loop(self._stream(stream).describe)

    def stream_status(self, stream: str) -> StreamStatus:
        """Raises UnknownStreamError."""
        state = self._stream(stream)
        return self._on_loop(lambda: state.status(time.monotonic()))

    def engine_status(self) -> tuple[EngineReading, ...]:
        """All engines, those that have failed included, in the order of the configuration."""
        coordinator = self._loaded()
        now = time.monotonic()
        readings = self._on_loop(
            lambda: read_engines(coordinator.slots, coordinator.trunks.table, now)
        )
        return tuple(self._with_memory(reading) for reading in readings)

    def _with_memory(self, reading: EngineReading) -> EngineReading:
        memory = self._maker.memory(self._parts.slots[reading.status.name].config)
        return replace(
            reading, memory_rss_bytes=memory.rss_bytes, memory_pss_bytes=memory.pss_bytes
        )

    def placement_status(self) -> PlacementStatus:
        coordinator = self._loaded()
        now = time.monotonic()
        return self._on_loop(lambda: read_placement(coordinator, self._parts.probes, now))

    def vision_status(self) -> VisionStatus:
        self._loaded()
        encoder = self._parts.encoder.encoders[0]
        return VisionStatus(
            backend=encoder.backend,
            n_encoders=len(self._parts.encoder.encoders),
            refused=self._parts.encoder.refused,
            self_test=self.self_test,
            n_tokens=encoder.n_tokens,
            n_embd=encoder.n_embd,
            queue_length=self._parts.vision.waiting,
            cache=self.cache.stats(),
            max_entries=self.cache.max_entries,
            max_bytes=self.cache.max_bytes,
        )

    @property
    def costs(self) -> CostModel:
        """What work cost on each engine when it was measured. Raises NotActiveError."""
        self._loaded()
        return self._parts.costs

    def planning_status(self) -> PlanningStatus:
        return self._on_loop(self._loaded().planner.status)

    def question_status(self) -> QuestionStatus:
        return self._on_loop(self._loaded().question_status)

    @property
    def self_test(self) -> SelfTestResult:
        return self._parts.encoder.self_test

    # ---------------------------------------------------------------- internals
    def _loaded(self) -> Coordinator:
        if self._coordinator is None:
            raise NotActiveError("the runtime is not loaded: call load first")
        return self._coordinator

    def _check_stream(self, name: str) -> None:
        if name not in self._names:
            raise UnknownStreamError(
                f"no stream {name!r}; there are: {', '.join(sorted(self._names))}"
            )

    def _check_engine(self, name: str) -> None:
        names = [engine.name for engine in self.config.engines]
        if name not in names:
            raise UnknownEngineError(f"no engine {name!r}; there are: {', '.join(names)}")

    def _stream(self, name: str) -> StreamState:
        self._check_stream(name)
        return self._loaded().streams[name]

    def _on_loop(self, function: Callable[[], _T]) -> _T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a listener may not call the runtime: it would wait for itself")
        reply: Future[_T] = Future()
        self._post(Call(function, reply))
        return reply.result()

    def _post(self, message: object) -> None:
        with self._gate:
            self._loaded().inbox.put(message)


def _wait_until(idle: threading.Event, timeout: float) -> None:
    if not idle.wait(timeout):
        raise TimeoutError(f"answers are still running after {timeout} s")
