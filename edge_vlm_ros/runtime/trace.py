"""Writes what every engine did when, as a trace that Perfetto and chrome://tracing show.

The file is an array of trace events, one a line. It has its end after every write, which the next
one writes over: a node that is killed leaves a trace that can be opened.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_vlm_ros.engines.step_record import StepRecord

MAX_BYTES = 256 * 2**20
"""Size at which a trace takes no more events: about two million steps."""
STEP = "step"
"""Category of the events of engines and encoders."""
QUESTION = "question"
"""Category of the events of questions."""

_FLUSH_BYTES = 64 * 1024
_FLUSH_S = 0.5
_PROCESS = 1
_PLANNER = "planner"
_LAST_WORDS_BYTES = 1024  # kept free for the event that says why there are no more
_END = b"\n]"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class QuestionTimes:
    """The stages of one question, in seconds of the clock that the steps have.

    None for what it ended before.
    """

    answer_id: int
    stream: str
    arrived: float
    context_ready: float | None
    first_token: float | None
    finished: float
    engine: str = ""
    path: str = ""
    finish_reason: str = ""


class TraceWriter:
    """One trace file. For one thread at a time.

    Events are collected and written together every 64 KiB or half a second, whichever is first;
    that is looked at when an event is added and by ``tick``. Adding never raises: when the file
    has ``max_bytes`` or cannot be written, the rest is left out, ``stopped`` says why, and so does
    the log.
    """

    def __init__(self, path: str, max_bytes: int = MAX_BYTES) -> None:
        """Begin a new file. Raises ValueError for a path that is not absolute, FileExistsError
        for one that is taken and other OSErrors when the file cannot be made."""
        path = os.path.expanduser(path)
        if not os.path.isabs(path):
            raise ValueError(f"a trace needs an absolute path, not {path!r}")
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError as error:
            raise FileExistsError(f"{path} exists already: choose another name") from error
        except OSError as error:
            raise OSError(f"the trace {path} cannot be made: {error.strerror}") from error
        self.path = path
        self.events = 0
        self.stopped = ""
        self._max_bytes = max_bytes
        self._size = 0
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._unwritten = 0
        self._flushed_at = time.monotonic()
        self._tracks: dict[str, int] = {}
        self._ends: dict[str, float] = {}
        self._closed = False
        self._put(b"[\n" + _encode(_metadata("process_name", 0, "edge_vlm_ros")))
        self.flush()
        if self.stopped:
            self.close()
            raise OSError(f"the trace {path} cannot be made: {self.stopped}")

    # ---------------------------------------------------------------- events
    def add_steps(self, name: str, records: Sequence[StepRecord]) -> None:
        """Steps of an engine or encoder, oldest first: they have the track ``name``."""
        if self.stopped or not records:
            return
        track = self._track(name)
        last_end = self._ends.get(name, 0.0)
        for record in records:
            # Readings of two clocks: what overlaps by a rounding would not be shown.
            start = max(_us(record.started), last_end)
            last_end = max(start, _us(record.started + record.seconds))
            args: dict[str, Any] = {
                "tokens": record.rows,
                "sequences": record.sequences,
                "history_tokens": record.history_tokens,
            }
            if record.n_bytes:
                args["bytes"] = record.n_bytes
            if record.label:
                args["for"] = record.label
            self._add(
                _event("X", record.activity.value, STEP, start, track)
                | {"dur": round(last_end - start, 3), "args": args}
            )
        self._ends[name] = last_end

    def add_question(self, question: QuestionTimes) -> None:
        """A question that has ended: one span from arrival to end, with its stages below it."""
        args = {
            "stream": question.stream,
            "engine": question.engine,
            "path": question.path,
            "finish_reason": question.finish_reason,
        }
        whole = f"answer {question.answer_id}"
        self._add(_mark("b", whole, question.arrived, question) | {"args": args})
        for name, start, stop in _stages(question):
            self._add(_mark("b", name, start, question))
            self._add(_mark("e", name, stop, question))
        self._add(_mark("e", whole, question.finished, question))

    def add_plan(self, answer_id: int, at: float, text: str) -> None:
        """A decision, made at ``at`` seconds: an instant with ``text`` on a track of its own."""
        if self.stopped:
            return
        event = _event("i", f"plan of answer {answer_id}", "plan", _us(at), self._track(_PLANNER))
        self._add(event | {"s": "t", "args": {"plan": text}})

    # ---------------------------------------------------------------- file
    def tick(self) -> None:
        """Write what has waited long enough. To be called now and then when nothing is added."""
        late = time.monotonic() - self._flushed_at > _FLUSH_S
        if late or self._buffered > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what has been collected. What cannot be written ends the trace."""
        self._flushed_at = time.monotonic()
        if not self._buffer:
            return
        data, self._buffer, self._buffered = b"".join(self._buffer), [], 0
        try:
            self._write(data + _END)
            self._size += len(data)
        except OSError as error:
            self.events -= self._unwritten
            self._stop(f"it cannot be written: {error.strerror}")
            self._take_back()
        self._unwritten = 0

    def close(self) -> None:
        """Write the rest."""
        if self._closed:
            return
        self._closed = True
        self.flush()
        os.close(self._file)

    def _add(self, event: dict[str, Any]) -> None:
        if self.stopped:
            return
        line = b",\n" + _encode(event)
        if self._size + self._buffered + len(line) > self._max_bytes - _LAST_WORDS_BYTES:
            reason = f"it has the {self._max_bytes} bytes that a trace may have"
            last = _event("i", f"trace ends here: {reason}", "trace", event["ts"])
            self._put(b",\n" + _encode(last | {"s": "g"}))
            self.flush()
            self._stop(reason)
            return
        self.events += 1
        self._unwritten += 1
        self._put(line)
        self.tick()

    def _put(self, line: bytes) -> None:
        self._buffer.append(line)
        self._buffered += len(line)

    def _write(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:], self._size + written)

    def _take_back(self) -> None:
        """End the file after the last event that was written as a whole."""
        try:
            os.ftruncate(self._file, self._size)
            self._write(_END)
        except OSError as error:
            _logger.warning("trace %s has no end: %s", self.path, error.strerror)

    def _stop(self, reason: str) -> None:
        if not self.stopped:
            self.stopped = reason
            _logger.warning("trace %s takes no more events: %s", self.path, reason)

    def _track(self, name: str) -> int:
        track = self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = len(self._tracks) + 1
            self._put(b",\n" + _encode(_metadata("thread_name", track, name)))
        return track


def _stages(question: QuestionTimes) -> list[tuple[str, float, float]]:
    """Name, start and end of the stages that a question came through."""
    marks = [question.arrived, question.context_ready, question.first_token, question.finished]
    stages = []
    for name, start, stop in zip(("context", "prefill", "decode"), marks, marks[1:], strict=False):
        if start is None:
            break
        stages.append((name, start, question.finished if stop is None else stop))
    return stages


def _event(phase: str, name: str, category: str, ts: float, track: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": phase,
        "ts": ts,
        "pid": _PROCESS,
        "tid": track,
    }


def _mark(phase: str, name: str, at: float, question: QuestionTimes) -> dict[str, Any]:
    """Begin or end of a span of a question; those with its id are shown below each other."""
    return _event(phase, name, QUESTION, _us(at)) | {"id": question.answer_id}


def _metadata(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _encode(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)
