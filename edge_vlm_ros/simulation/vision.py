"""The vision encoder on virtual time."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import numpy as np

from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.vision.embedding_cache import EmbeddingCache, EmbeddingKey
from edge_vlm_ros.vision.events import EncodeRequest, FrameEncoded, VisionEvent

from .machine import Machine


class SimulatedVision:
    """Implements VisionPort: frames are encoded one after the other, each for ``encode_s``.

    ``name`` is the encoder's in the costs. All frames differ, and their embeddings have
    ``n_tokens`` rows of one number.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        n_tokens: int,
        cache: EmbeddingCache,
        emit: Callable[[VisionEvent], None],
    ) -> None:
        self.records: list[StepRecord] = []
        self._machine = machine
        self._name = name
        self._encode_s = machine.costs.encode_s[name]
        self._n_tokens = n_tokens
        self._cache = cache
        self._emit = emit
        self._waiting: deque[EncodeRequest] = deque()
        self._is_busy = False

    def submit(self, request: EncodeRequest) -> None:
        self._waiting.append(request)
        self._go_on()

    def _go_on(self) -> None:
        if self._is_busy or not self._waiting:
            return
        request, machine, began = self._waiting.popleft(), self._machine, self._machine.clock()
        seconds = machine.slowed(self._name, Activity.ENCODE, self._encode_s)
        self._is_busy = True
        machine.begin(self._name, Activity.ENCODE)
        machine.events.at(began + seconds, lambda: self._end(request, began, seconds))

    def _end(self, request: EncodeRequest, began: float, seconds: float) -> None:
        self._machine.end(self._name)
        self._is_busy = False
        rows, stream = self._n_tokens, request.stream
        self.records.append(StepRecord(Activity.ENCODE, began, seconds, rows, 1, 0, 0, stream))
        key = EmbeddingKey(b"simulated", _pixels(request))
        stored = self._cache.put(key, np.zeros((rows, 1), np.float32), pin=True)
        self._emit(
            FrameEncoded(
                stream, request.frame_id, key, stored, seconds, cache_hit=False, started=began
            )
        )
        self._go_on()


def _pixels(request: EncodeRequest) -> bytes:
    """What stands for the frame's content."""
    return request.stream.encode() + struct.pack("<Q", request.frame_id)
