"""The public API without ROS: streams in, questions in, answers out."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TypeVar

import numpy as np

from edge_vlm_ros.engines.llama_engine import LlamaCppEngine
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.history import History, HistoryLimits, Version, root_identity
from edge_vlm_ros.model_profile import sha256_file, template_identity, verify_files
from edge_vlm_ros.vision.embedding_cache import EmbeddingCache
from edge_vlm_ros.vision.encoder import Encoder, RgbImage
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder
from edge_vlm_ros.vision.self_test import SelfTestResult, self_test
from edge_vlm_ros.vision.worker import VisionWorker

from .answer import Answer, AskOptions, QuestionRejected
from .config import ConfigError, RuntimeConfig
from .coordinator import Coordinator
from .listener import RuntimeListener
from .messages import Call, FrameArrived, InvalidFrame, Stop
from .prompt import PromptTemplate, prompt_template
from .sizing import answer_cells, context_cells, history_limits
from .status import QuestionStatus, StreamStatus, VisionStatus
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
            self._model = LlamaModel(
                profile.language.file, lambda fraction: report("language model", fraction)
            )
            undo.callback(self._model.close)
            report("vision encoder", 0.0)
            encoder = OnnxEncoder(profile.encoder, threads=self.config.vision.n_threads)
            undo.callback(encoder.close)
            self._start(encoder, undo)
            undo.pop_all()
        report("ready", 1.0)

    def _start(self, encoder: Encoder, undo: ExitStack) -> None:
        config, model = self.config, self._model
        if encoder.n_embd != model.n_embd:
            raise ConfigError(
                f"the encoder's embeddings have {encoder.n_embd} values, the language model "
                f"{model.path.name} takes {model.n_embd}: they do not belong together"
            )
        trained = config.profile.language.context_tokens
        if trained > model.n_ctx_train:
            raise ConfigError(
                f"the profile says that {model.path.name} was trained on {trained} positions, the "
                f"file says {model.n_ctx_train}: correct language.context_tokens"
            )
        self._self_test = self_test(encoder, config.profile.encoder.reference)
        if not self._self_test.passed:
            _logger.warning("encoder self-test failed: %s", self._self_test.message)
        self._encoder = encoder
        prompt = prompt_template(config.profile, model)
        limits = [
            history_limits(stream.history, config.profile, prompt, config.questions)
            for stream in config.streams
        ]
        self.cache = EmbeddingCache(config.vision.cache_entries, config.vision.cache_bytes)
        inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._engine = LlamaCppEngine(
            model,
            config.engine,
            n_ctx=context_cells(config.engine, limits, config.questions),
            max_trunks=2 * len(limits) + config.questions.max_pending,
            max_branches=config.questions.max_pending,
            answer_cells=answer_cells(config.questions),
            stop_tokens=prompt.stop_tokens,
            emit=inbox.put,
        )
        undo.callback(self._engine.close)
        self._vision = VisionWorker(
            encoder,
            self.cache,
            inbox.put,
            resize=config.profile.encoder.resize,
            pad_value=config.profile.encoder.pad_value,
        )
        undo.callback(self._vision.close)
        coordinator = Coordinator(
            inbox,
            self._new_streams(prompt, limits),
            self._engine,
            self.cache,
            prompt,
            lambda text: model.tokenize(text, parse_special=False),
            config.questions,
            self._listener,
        )
        thread = threading.Thread(target=coordinator.run, name="coordinator", daemon=True)
        thread.start()
        self._thread = thread
        self._coordinator = coordinator

    def _new_streams(
        self, prompt: PromptTemplate, limits: Sequence[HistoryLimits]
    ) -> list[StreamState]:
        root = _root_identity(self.config)
        return [
            StreamState(
                stream,
                History(stream.name, root, prompt.open_tokens, prompt.frame_shape, limit),
                self._engine,
                self._vision,
                self.cache,
            )
            for stream, limit in zip(self.config.streams, limits, strict=True)
        ]

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
            self._engine.close()
            self._vision.close()
            coordinator.inbox.put(Stop())
            if self._thread is not None:
                self._thread.join()
            self._model.close()

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
        return self._on_loop(lambda: coordinator.commit(answer_id))

    # ---------------------------------------------------------------- readings
    def describe(self, stream: str) -> list[str]:
        """One line per item of the stream's history. Raises UnknownStreamError."""
        return self._on_loop(self._stream(stream).describe)

    def stream_status(self, stream: str) -> StreamStatus:
        """Raises UnknownStreamError."""
        state = self._stream(stream)
        return self._on_loop(lambda: state.status(time.monotonic()))

    def engine_status(self) -> tuple[EngineStatus, ...]:
        self._loaded()
        return (self._engine.status(),)

    def vision_status(self) -> VisionStatus:
        self._loaded()
        return VisionStatus(
            backend=self._encoder.backend,
            self_test=self.self_test,
            n_tokens=self._encoder.n_tokens,
            n_embd=self._encoder.n_embd,
            queue_length=self._vision.waiting,
            cache=self.cache.stats(),
            max_entries=self.cache.max_entries,
            max_bytes=self.cache.max_bytes,
        )

    def question_status(self) -> QuestionStatus:
        return self._on_loop(self._loaded().question_status)

    @property
    def self_test(self) -> SelfTestResult:
        return self._self_test

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


def _root_identity(config: RuntimeConfig) -> bytes:
    profile = config.profile
    model_digest = profile.language.sha256 or sha256_file(profile.language.file)
    return root_identity(model_digest.encode(), template_identity(profile))
