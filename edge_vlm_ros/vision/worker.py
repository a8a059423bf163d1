"""The threads that own the encoders, one each."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from .embedding_cache import EmbeddingCache, EmbeddingKey
from .encoder import Encoder, check_embeddings
from .errors import WorkerClosedError
from .events import EncodeRequest, FrameEncoded, FrameFailed, VisionEvent
from .preprocess import ResizePolicy, pixel_digest, resize_rgb

_log = logging.getLogger(__name__)


class VisionWorkers:
    """Encode frames in the order they were submitted, on a thread of its own for each encoder.

    Every submitted request ends in exactly one event; with several encoders a later frame may be
    ready first. Frames whose preprocessed pixels are equal are encoded once, as long as the cache
    still holds the result. The workers own the encoders and close them.
    """

    def __init__(
        self,
        encoders: Sequence[Encoder],
        cache: EmbeddingCache,
        emit: Callable[[VisionEvent], None],
        *,
        resize: ResizePolicy,
        pad_value: int = 0,
    ) -> None:
        """Start the threads.

        Args:
            encoders: equal ones, each used by one thread only from now on.
            cache: where the embeddings go; also used by others.
            emit: called from the workers' threads with each event; must not block or raise.
            resize: how frames are brought to the encoder's input size.
            pad_value: 0 to 255, for ``resize="pad"``.
        """
        self._cache = cache
        self._emit_event = emit
        self._resize: ResizePolicy = resize
        self._pad_value = pad_value
        self._waiting: deque[EncodeRequest] = deque()
        self._closing = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, args=(e,), name=f"vision-worker-{n}", daemon=True)
            for n, e in enumerate(encoders)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Requests that wait; those being encoded are not counted."""
        with self._changed:
            return len(self._waiting)

    def submit(self, request: EncodeRequest) -> None:
        """Queue a frame.

        Raises:
            WorkerClosedError: the worker has been closed.
        """
        with self._changed:
            if self._closing:
                raise WorkerClosedError(
                    f"frame {request.frame_id} of stream {request.stream!r} came after the "
                    "vision workers had been closed"
                )
            self._waiting.append(request)
            self._changed.notify()

    def close(self) -> None:
        """Stop after the frames being encoded, fail the waiting ones, close the encoders, join.

        Calling it again does nothing. It may be called from within ``emit``; then that thread ends
        after ``emit`` has returned.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join()

    def _run(self, encoder: Encoder) -> None:
        while (request := self._next()) is not None:
            self._emit(self._process(encoder, request))
        with self._changed:
            rest = list(self._waiting)
            self._waiting.clear()
        for request in rest:
            text = "the vision workers were closed before this frame was encoded"
            self._emit(FrameFailed(request.stream, request.frame_id, text))
        try:
            encoder.close()
        except Exception:
            _log.exception("closing the encoder failed")

    def _next(self) -> EncodeRequest | None:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            return None if self._closing else self._waiting.popleft()

    def _process(self, encoder: Encoder, request: EncodeRequest) -> VisionEvent:
        try:
            return self._encode(encoder, request)
        except Exception as error:  # whatever an encoder raises, the next frame gets its chance
            _log.debug("frame %d of %s failed", request.frame_id, request.stream, exc_info=True)
            text = str(error) or type(error).__name__
            return FrameFailed(request.stream, request.frame_id, text)

    def _encode(self, encoder: Encoder, request: EncodeRequest) -> FrameEncoded:
        rgb = resize_rgb(request.rgb, encoder.input_size, self._resize, self._pad_value)
        key = EmbeddingKey(encoder.identity, pixel_digest(rgb))
        cached = self._cache.get(key, pin=True)
        if cached is not None:
            return FrameEncoded(request.stream, request.frame_id, key, cached, 0.0, True)
        start = time.monotonic()
        result = encoder.encode(rgb)
        seconds = time.monotonic() - start
        embeddings = check_embeddings(result, encoder.n_tokens, encoder.n_embd)
        stored = self._cache.put(key, embeddings, pin=True)
        return FrameEncoded(request.stream, request.frame_id, key, stored, seconds, False, start)

    def _emit(self, event: VisionEvent) -> None:
        try:
            self._emit_event(event)
        except Exception:
            _log.exception("the receiver of vision events failed on %s", type(event).__name__)
