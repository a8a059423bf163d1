"""The event loop that owns every decision.

It is single-threaded and never blocks on anything but its queue: messages from cameras and askers,
events from encoders and engines come in; commands go out.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable
from typing import Any

from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AnswerHandedOff,
    AppendFailed,
    EngineFailed,
    Event,
    ExportFailed,
    FinishReason,
    Origin,
    PrefillStarted,
    RangeExported,
    TokensGenerated,
    VersionComputed,
)
from edge_vlm_ros.history import BindingError, NewestRegistered
from edge_vlm_ros.placement.residency import TrunkRecord
from edge_vlm_ros.vision.embedding_cache import EmbeddingCache
from edge_vlm_ros.vision.events import FrameEncoded, FrameFailed

from .admission import Admission, check_version
from .answer import Answer, AnswerResult, AskOptions, QuestionRejected
from .answering import Answering
from .committing import Committing
from .config import QuestionLimits
from .engine_slots import EngineSaid, EngineSlots, EngineStarted
from .listener import RuntimeListener
from .messages import Call, CancelRequested, FrameArrived, InvalidFrame, Stop
from .path import Path
from .planner import Planner
from .prompt import PromptTemplate
from .question import Question, seconds_to_deadline
from .status import PlanRecord, QuestionStatus
from .stream import MAX_APPEND_ATTEMPTS, Drop, StreamState
from .tracing import Tracing
from .trunks import Trunks

_logger = logging.getLogger(__name__)


class Coordinator:
    """Owns streams and questions. ``run`` is its thread; ``inbox`` the only way in."""

    def __init__(
        self,
        inbox: queue.SimpleQueue[object],
        streams: Iterable[StreamState],
        slots: EngineSlots,
        trunks: Trunks,
        planner: Planner,
        cache: EmbeddingCache,
        prompt: PromptTemplate,
        tokenize: Callable[[str], tuple[int, ...]],
        limits: QuestionLimits,
        listener: RuntimeListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox = inbox
        self.streams = {stream.name: stream for stream in streams}
        self.active = False
        self.slots, self.trunks, self.planner = slots, trunks, planner
        self._cache = cache
        self._admission = Admission(limits, self.streams, slots.names, prompt, tokenize)
        self._listener = listener
        self._clock = clock
        self.answering = Answering(
            self.streams, slots, trunks, planner, clock, self._update, self._ended, self._moved
        )
        self.committing = Committing(
            self.streams, prompt, tokenize, limits.commit_order, self._deliver
        )
        self._next_answer_id = 1
        self._on_idle: list[Callable[[], None]] = []
        planner.planned = self._planned
        planner.ended = lambda record: self._tell(listener.plan_finished, record)
        self.tracing = Tracing(planner.collect, clock)
        planner.stepped = self.tracing.stepped
        for state in self.streams.values():
            state.choose_engine = planner.ingest_engine
            state.is_idle = planner.is_idle
            state.on_registered = lambda frame: self._tell(listener.frame_registered, frame)

    # ---------------------------------------------------------------- loop
    def run(self) -> None:
        """Handle messages until Stop; no accepted question is left without an end then."""
        self.begin()
        while True:
            try:
                message = self.inbox.get(timeout=self.patience())
            except queue.Empty:
                message = None
            if isinstance(message, Stop):
                self.answering.end_all_here(FinishReason.CANCELLED, "the runtime was closed")
                self.tracing.close()
                return
            try:
                self.step(message)
            except Exception:  # one bad message must not end the node
                _logger.exception("the coordinator failed on %s", type(message).__name__)

    def begin(self) -> None:
        """Have what every history begins with computed; the first thing to be done."""
        self._ingest_all()

    def step(self, message: object | None) -> None:
        """Handle one message, or None when ``patience`` has passed without one."""
        try:
            self._handle(message)
        finally:  # first the message, whatever becomes of the rest: somebody waits for it
            self._keep_up(message)

    def _keep_up(self, message: object | None) -> None:
        """Do what time and any message may have made due."""
        self.answering.end_overdue(self._clock())
        self.slots.retry_due(self._clock())
        if self.trunks.take_retry():
            self._ingest_all()
            self.answering.advance()
        self.planner.observe()
        self.tracing.tick()
        if isinstance(message, EngineSaid) and isinstance(message.event, TokensGenerated):
            return  # they come often, and give no engine time
        for stream in self.streams.values():
            stream.compute_ahead()

    def patience(self) -> float | None:
        """Seconds after which ``step`` must be called even if no message comes; None: never."""
        now = self._clock()
        times = (
            seconds_to_deadline(self.answering.questions.values(), now),
            self.slots.seconds_to_retry(now),
            self.trunks.seconds_to_retry(now),
        )
        return min((seconds for seconds in times if seconds is not None), default=None)

    def _handle(self, message: object) -> None:
        match message:
            case None:
                pass
            case EngineSaid():
                if self.slots.is_current(message):
                    self._engine_said(message.engine, message.event)
            case FrameArrived():
                self._frame(message)
            case FrameEncoded():
                self.planner.frame_encoded(message)
                self._settle(message.stream, lambda stream: stream.complete(message))
            case FrameFailed():
                self._frame_failed(message)
            case CancelRequested(answer_id):
                self.answering.end(answer_id, FinishReason.CANCELLED)
            case Call():
                self._call(message)
            case InvalidFrame(stream):
                self.streams[stream].note_invalid(self._clock())
            case EngineStarted():
                self._engine_started(message)
            case _:
                raise TypeError(f"not a message for the coordinator: {message!r}")

    def _engine_said(self, engine: str, event: Event) -> None:
        match event:
            case TokensGenerated():
                self.answering.tokens(engine, event)
            case VersionComputed():
                self._version_computed(engine, event)
            case AppendFailed():
                self._append_failed(engine, event)
            case RangeExported():
                self._go_on(self.trunks.exported(event))
            case ExportFailed():
                self._go_on(self.trunks.export_failed(event))
            case PrefillStarted(answer_id):
                self.answering.prefill_started(engine, answer_id)
            case AnswerHandedOff():
                self.answering.handed_off(engine, event)
            case AnswerFinished():
                self.slots.worked(engine)
                self.answering.finished(engine, event)
            case EngineFailed():
                self._engine_failed(event)

    def _call(self, call: Call) -> None:
        try:
            call.reply.set_result(call.function())
        except Exception as error:
            call.reply.set_exception(error)

    # ---------------------------------------------------------------- frames
    def _frame(self, frame: FrameArrived) -> None:
        if not self.active:
            return
        stream = self.streams[frame.stream]
        if not self.slots.ready:
            drops = stream.refuse(frame, "engine_failed", self._no_engine())
            self._tell_drops(frame.stream, drops)
            return
        self._tell_drops(frame.stream, stream.receive(frame))
        stream.ingest()  # a new epoch may have begun

    def _advance(self, stream: StreamState) -> None:
        """After any change: register what stands by, have computed what can be computed."""
        self._tell_drops(stream.config.name, stream.admit_standby())
        stream.ingest()

    def _tell_drops(self, stream: str, drops: list[Drop]) -> None:
        for drop in drops:
            self._tell(self._listener.frame_dropped, stream, drop.reason, drop.text)

    def _frame_failed(self, event: FrameFailed) -> None:
        self._settle(event.stream, lambda stream: stream.fail(event))
        self._tell_drops(event.stream, [Drop("encoder_failed", event.error)])

    def _settle(self, name: str, change: Callable[[StreamState], None]) -> None:
        stream = self.streams[name]
        change(stream)
        self._advance(stream)
        self.answering.advance(name)

    # ---------------------------------------------------------------- engines
    def _version_computed(self, engine: str, event: VersionComputed) -> None:
        self.slots.worked(engine)
        record = self.trunks.computed(engine, event)
        if record is None:
            return
        stream = self.streams[event.trunk.stream]
        version = stream.computed(record, event)
        taken_over = self.answering.take_over(engine) if record.settled else ""
        self.answering.advance(stream.name)
        if taken_over:
            self.answering.advance(taken_over)
        self._advance(stream)
        if version is not None:
            self._tell(self._listener.version_published, version)

    def _append_failed(self, engine: str, event: AppendFailed) -> None:
        record = self.trunks.append_failed(engine, event)
        if record is None:
            return
        if event.origin is Origin.COMPUTED and record.attempts >= MAX_APPEND_ATTEMPTS:
            text = f"the history of stream {event.trunk.stream} cannot be computed: {event.error}"
            _logger.error("engine %s: %s", engine, text)
            self.answering.trunk_failed(record, text)
            return
        self._go_on(record)

    def _go_on(self, record: TrunkRecord | None) -> None:
        """A trunk can be taken further."""
        if record is not None:
            self.streams[record.trunk.stream].ingest()
            self.answering.advance(record.trunk.stream)

    def _engine_failed(self, event: EngineFailed) -> None:
        text = f"engine {event.engine} failed: {event.error}"
        _logger.error(text)
        self.slots.failed(event.engine, event.error, self._clock())
        self.trunks.engine_lost(event.engine)
        self._tell(self._listener.engine_failed, event.engine, event.error)
        self.answering.engine_lost(event.engine, text)
        self._ingest_all()
        self.answering.advance()  # what was to be imported from it comes another way

    def _engine_started(self, message: EngineStarted) -> None:
        if self.slots.started(message, self._clock()):
            _logger.info("engine %s works again", message.name)
            self._tell(self._listener.engine_recovered, message.name)
            self._ingest_all()
            self.answering.advance()
        else:
            _logger.error("engine %s cannot be started again: %s", message.name, message.error)

    def _ingest_all(self) -> None:
        for stream in self.streams.values():
            self._advance(stream)

    def _no_engine(self) -> str:
        return "; ".join(f"engine {slot.config.name} failed: {slot.error}" for slot in self.slots)

    def move_ingestion(self, stream: str, engine: str) -> None:
        """Have another engine compute the frames of a stream from now on. With an empty name the
        policy chooses."""
        state = self.streams[stream]
        state.pinned = bool(engine)
        state.preferred_engine = engine or state.preferred_engine
        self._advance(state)

    # ---------------------------------------------------------------- questions
    def ask(self, stream: str, text: str, options: AskOptions, arrived: float) -> Answer:
        """Accept a question and bind it, or raise QuestionRejected."""
        try:
            return self._accept(stream, text, options, arrived)
        except QuestionRejected as rejection:
            self._admission.rejections[rejection.reason] += 1
            self._tell(
                self._listener.question_rejected, stream, text, rejection.reason, str(rejection)
            )
            raise

    def _accept(self, name: str, text: str, options: AskOptions, arrived: float) -> Answer:
        if not self.active:
            raise QuestionRejected("inactive", "the node is not active: activate it first")
        if not self.slots.ready:
            raise QuestionRejected("engine_failed", self._no_engine())
        pending = len(self.answering.questions)
        prompt = self._admission.admit(name, text, options, pending)
        stream = self.streams[name]
        if isinstance(options.binding, NewestRegistered):
            self._tell_drops(name, stream.admit_standby(for_question=True))
        try:
            version = stream.history.bind(options.binding)
        except BindingError as error:
            raise QuestionRejected("bad_binding", str(error)) from error
        try:
            check_version(stream, version, options, self.trunks)
        except QuestionRejected:
            stream.history.unwant(version)
            stream.history.release(version)
            raise
        answer = Answer(self._next_answer_id, name, text, self._cancel)
        self._next_answer_id += 1
        self._admission.accepted += 1
        question = Question(
            answer=answer,
            prompt=prompt,
            options=options,
            max_tokens=options.max_tokens or self._admission.limits.default_max_tokens,
            version=version,
            arrived=arrived,
            path=Path(options.path),
        )
        self.committing.accepted(question)
        self.answering.accept(question)
        stream.ingest()
        self.answering.advance(name)
        return answer

    def _cancel(self, answer_id: int) -> None:
        self.inbox.put(CancelRequested(answer_id))

    def _ended(self, question: Question, event: AnswerFinished) -> None:
        metrics = question.metrics(self._clock(), event.running_answers, self._cache.stats())
        assert question.context is not None
        result = question.result(event, question.context, metrics)
        self.tracing.ended(question, event)
        self.committing.ended(question, result)
        while self._on_idle and not self.answering.questions:
            self._on_idle.pop(0)()

    def _deliver(self, question: Question, result: AnswerResult) -> None:
        self._tell(self._listener.answer_finished, question.answer, result)
        question.answer.put(result)

    def _update(self, question: Question, delta: str = "") -> None:
        update = question.update(delta)
        question.answer.put(update)
        self._tell(self._listener.answer_updated, question.answer, update)

    def _moved(self, question: Question, why: str) -> None:
        _logger.warning("answer %d goes on on %s: %s", question.answer_id, question.engine, why)
        self._tell(self._listener.answer_moved, question.answer, question.engine, why)

    def _planned(self, record: PlanRecord) -> None:
        self.tracing.planned(record)
        self._tell(self._listener.plan_made, record)

    # ---------------------------------------------------------------- ends
    def end_all(self, done: Callable[[], None]) -> None:
        """Cancel every question; ``done`` is called when the last one has ended."""
        self.active = False
        for stream in self.streams.values():
            stream.forget_standby()
        if not self.answering.questions:
            done()
            return
        self._on_idle.append(done)
        for answer_id in list(self.answering.questions):
            self.answering.end(answer_id, FinishReason.CANCELLED)

    # ---------------------------------------------------------------- readings
    def question_status(self) -> QuestionStatus:
        return self._admission.status(len(self.answering.questions), self.committing.endings)

    def _tell(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            _logger.exception("the listener failed in %s", getattr(method, "__name__", method))
