"""The public API without ROS: streams in, questions in, answers out."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from edge_vlm_ros.engines.llama_engine import LlamaCppEngine
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.history import History, Version, root_identity
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
from .prompt import prompt_template
from .sizing import answer_cells, context_cells, history_limits
from .status import QuestionStatus, StreamStatus, VisionStatus
from .stream import StreamState

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

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

    # ---------------------------------------------------------------- life
    def load(self, progress: LoadProgress | None = None) -> None:
        """Load the models and start the threads. Takes seconds to minutes.

        Raises ProfileError, ConfigError, EngineError or EncoderError; nothing stays loaded then.
        """
        if self._coordinator is not None:
            raise RuntimeError("the runtime is loaded already")
        report = progress or (lambda what, fraction: None)
        profile = self.config.profile
        report("checking files", 0.0)
        verify_files(profile)
        self._model = LlamaModel(
            profile.language.file, lambda fraction: report("language model", fraction)
        )
        try:
            report("vision encoder", 0.0)
            encoder = OnnxEncoder(profile.encoder, threads=self.config.vision.n_threads)
            try:
                self._start(encoder)
            except BaseException:
                encoder.close()
                raise
        except BaseException:
            self._model.close()
            raise
        report("ready", 1.0)

    def _start(self, encoder: Encoder) -> None:
        config, model = self.config, self._model
        if encoder.n_embd != model.n_embd:
            raise ConfigError(
                f"the encoder's embeddings have {encoder.n_embd} values, the language model "
                f"{model.path.name} takes {model.n_embd}: they do not belong together"
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
        self._vision = VisionWorker(
            encoder,
            self.cache,
            inbox.put,
            resize=config.profile.encoder.resize,
            pad_value=config.profile.encoder.pad_value,
        )
        root = _root_identity(config, encoder)
        streams = [
            StreamState(
                stream,
                History(stream.name, root, prompt.open_tokens, prompt.frame_shape, limit),
                self._engine,
                self._vision,
                self.cache,
            )
            for stream, limit in zip(config.streams, limits, strict=True)
        ]
        coordinator = Coordinator(
            inbox,
            streams,
            self._engine,
            self.cache,
            prompt,
            lambda text: model.tokenize(text, parse_special=False),
            config.questions,
            self._listener,
        )
        self._thread = threading.Thread(target=coordinator.run, name="coordinator", daemon=True)
        self._thread.start()
        self._coordinator = coordinator

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
        if not idle.wait(timeout):
            raise TimeoutError(f"answers are still running after {timeout} s")

    def close(self) -> None:
        """Stop the threads and free the models. Does nothing when they are not loaded."""
        coordinator = self._coordinator
        if coordinator is None:
            return
        try:
            self.deactivate()
        except TimeoutError:
            _logger.warning("closing with answers still running")
        self._coordinator = None
        self._engine.close()
        self._vision.close()
        coordinator.inbox.put(Stop())
        self._thread.join()
        self._model.close()

    @property
    def active(self) -> bool:
        return self._coordinator is not None and self._coordinator.active

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
        UnknownStreamError or NotActiveError.
        """
        self._check_stream(stream)
        if not self.active:
            raise NotActiveError("the runtime is not active: activate it first")
        now = time.monotonic() if received_at is None else received_at
        self._loaded().inbox.put(FrameArrived(stream, rgb, stamp_ns, now))

    def note_invalid_frame(self, stream: str) -> None:
        """Count a camera message that could not be converted. Raises UnknownStreamError."""
        self._check_stream(stream)
        self._loaded().inbox.put(InvalidFrame(stream))

    def ask(self, stream: str, question: str, options: AskOptions | None = None) -> Answer:
        """Ask a question; it is accepted at once or QuestionRejected is raised."""
        arrived = time.monotonic()
        if self._coordinator is None:
            raise QuestionRejected("inactive", "no model is loaded: configure the node first")
        coordinator = self._coordinator
        return self._on_loop(
            lambda: coordinator.ask(stream, question, options or AskOptions(), arrived)
        )

    def reset(self, stream: str) -> Version:
        """Forget everything about a stream. Raises UnknownStreamError."""
        self._check_stream(stream)
        coordinator = self._loaded()
        return self._on_loop(lambda: coordinator.reset(stream))

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
        reply: Future[_T] = Future()
        self._loaded().inbox.put(Call(function, reply))
        return reply.result()


def _root_identity(config: RuntimeConfig, encoder: Encoder) -> bytes:
    profile = config.profile
    model_digest = profile.language.sha256 or sha256_file(profile.language.file)
    return root_identity(model_digest.encode(), template_identity(profile))
