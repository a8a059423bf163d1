"""The event loop that owns every decision.

It is single-threaded and never blocks on anything but its queue: messages from cameras and askers,
events from encoders and engines come in; commands go out.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AppendFailed,
    EndAnswer,
    EngineFailed,
    FinishReason,
    LanguageEngine,
    PrefillStarted,
    TokensGenerated,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.history import BindingError, HistoryFull, NewestRegistered, Version, VersionState
from edge_vlm_ros.vision.embedding_cache import EmbeddingCache
from edge_vlm_ros.vision.events import FrameEncoded, FrameFailed

from .admission import Admission
from .answer import Answer, AnswerResult, AnswerState, AskOptions, QuestionRejected
from .config import QuestionLimits
from .finished_answers import COMPLETE, CommitError, FinishedAnswers
from .listener import RuntimeListener
from .messages import Call, CancelRequested, FrameArrived, InvalidFrame, Stop
from .prompt import PromptTemplate
from .question import Question, context_used, seconds_to_deadline
from .status import QuestionStatus
from .stream import Drop, StreamState

_logger = logging.getLogger(__name__)


class Coordinator:
    """Owns streams and questions. ``run`` is its thread; ``inbox`` the only way in."""

    def __init__(
        self,
        inbox: queue.SimpleQueue[object],
        streams: Iterable[StreamState],
        engine: LanguageEngine,
        cache: EmbeddingCache,
        prompt: PromptTemplate,
        tokenize: Callable[[str], tuple[int, ...]],
        limits: QuestionLimits,
        listener: RuntimeListener,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox = inbox
        self.streams = {stream.config.name: stream for stream in streams}
        self.active = False
        self._engine = engine
        self._engine_error = ""
        self._cache = cache
        self._prompt = prompt
        self._tokenize = tokenize
        self._admission = Admission(limits, self.streams, prompt, tokenize)
        self._listener = listener
        self._clock = clock
        self._questions: dict[int, Question] = {}
        self._finished = FinishedAnswers()
        self._next_answer_id = 1
        self._accepted = 0
        self._rejections: Counter[str] = Counter()
        self._on_idle: list[Callable[[], None]] = []

    # ---------------------------------------------------------------- loop
    def run(self) -> None:
        """Handle messages until Stop; no accepted question is left without an end then."""
        for stream in self.streams.values():
            stream.ingest()
        while True:
            try:
                patience = seconds_to_deadline(self._questions.values(), self._clock())
                message = self.inbox.get(timeout=patience)
            except queue.Empty:
                message = None
            if isinstance(message, Stop):
                self._end_without_engine(FinishReason.CANCELLED, "the runtime was closed")
                return
            try:
                self._handle(message)
                self._end_overdue()
            except Exception:  # one bad message must not end the node
                _logger.exception("the coordinator failed on %s", type(message).__name__)

    def _handle(self, message: object) -> None:
        match message:
            case None:
                pass
            case TokensGenerated():
                self._tokens(message)
            case FrameArrived():
                self._frame(message)
            case FrameEncoded():
                self._settle(message.stream, lambda stream: stream.complete(message))
            case FrameFailed():
                self._frame_failed(message)
            case VersionComputed():
                self._version_computed(message)
            case AppendFailed():
                self._append_failed(message)
            case PrefillStarted(answer_id):
                self._prefill_started(answer_id)
            case AnswerFinished():
                self._answer_finished(message)
            case CancelRequested(answer_id):
                self._end(answer_id, FinishReason.CANCELLED)
            case Call():
                self._call(message)
            case InvalidFrame(stream):
                self.streams[stream].note_invalid(self._clock())
            case EngineFailed():
                self._engine_failed(message)
            case _:
                raise TypeError(f"not a message for the coordinator: {message!r}")

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
        if self._engine_error:
            drops = stream.refuse(frame, "engine_failed", self._engine_error)
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
        self._start_ready(stream)

    def _version_computed(self, event: VersionComputed) -> None:
        stream = self.streams[event.trunk.stream]
        version = stream.computed(event)
        self._start_ready(stream)
        self._advance(stream)
        if version is not None:
            self._tell(self._listener.version_published, version)

    def _append_failed(self, event: AppendFailed) -> None:
        stream = self.streams[event.trunk.stream]
        if not stream.append_failed(event):
            _logger.error("stream %s cannot be ingested: %s", event.trunk.stream, event.error)
            for question in list(self._questions.values()):
                waits = question.state is AnswerState.WAITING_CONTEXT
                trunk = TrunkId(question.version.stream, question.version.epoch)
                if waits and trunk == event.trunk:
                    self._finish_unstarted(question, FinishReason.ERROR, event.error)
            return
        stream.ingest()

    # ---------------------------------------------------------------- questions
    def ask(self, stream: str, text: str, options: AskOptions, arrived: float) -> Answer:
        """Accept a question and bind it, or raise QuestionRejected."""
        try:
            return self._accept(stream, text, options, arrived)
        except QuestionRejected as rejection:
            self._rejections[rejection.reason] += 1
            self._tell(
                self._listener.question_rejected, stream, text, rejection.reason, str(rejection)
            )
            raise

    def _accept(self, name: str, text: str, options: AskOptions, arrived: float) -> Answer:
        if not self.active:
            raise QuestionRejected("inactive", "the node is not active: activate it first")
        if self._engine_error:
            raise QuestionRejected(
                "engine_failed", f"{self._engine_error}: clean up and configure the node again"
            )
        prompt = self._admission.admit(name, text, options, len(self._questions))
        stream = self.streams[name]
        if isinstance(options.binding, NewestRegistered):
            self._tell_drops(name, stream.admit_standby(for_question=True))
        try:
            version = stream.history.bind(options.binding)
        except BindingError as error:
            raise QuestionRejected("bad_binding", str(error)) from error
        if stream.is_empty(version):
            stream.history.release(version)
            raise QuestionRejected(
                "no_frames",
                f"stream {name!r} holds no frame to answer from: is its camera running, and do its "
                "images arrive?",
            )
        answer = Answer(self._next_answer_id, name, text, self._cancel)
        self._next_answer_id += 1
        self._accepted += 1
        question = Question(
            answer=answer,
            prompt=prompt,
            options=options,
            max_tokens=options.max_tokens or self._admission.limits.default_max_tokens,
            version=version,
            arrived=arrived,
            engine=self._engine.name,
        )
        self._questions[answer.answer_id] = question
        self._update(question)
        stream.ingest()
        self._start_ready(stream)
        return answer

    def _cancel(self, answer_id: int) -> None:
        self.inbox.put(CancelRequested(answer_id))

    def _start_ready(self, stream: StreamState) -> None:
        for question in list(self._questions.values()):
            if question.state is not AnswerState.WAITING_CONTEXT:
                continue
            version = question.version
            if version.stream != stream.config.name:
                continue
            if stream.history.state(version) is VersionState.PUBLISHED:
                epoch = stream.history.epoch(version.epoch)
                self._engine.submit(question.start(epoch, self._clock()))
                # The fork precedes any later command, so the trunk may go now.
                stream.history.release(version)
                self._update(question)

    def _prefill_started(self, answer_id: int) -> None:
        question = self._questions.get(answer_id)
        if question is not None:
            question.prefill_started = self._clock()
            question.state = AnswerState.PREFILL
            self._update(question)

    def _tokens(self, event: TokensGenerated) -> None:
        question = self._questions.get(event.answer_id)
        if question is None:
            return
        question.generated_tokens = event.generated_tokens
        if question.first_token is None:
            question.first_token = self._clock()
            question.state = AnswerState.DECODING
            self._update(question, event.delta)
        elif event.delta:
            self._update(question, event.delta)

    def _answer_finished(self, event: AnswerFinished) -> None:
        question = self._questions.get(event.answer_id)
        if question is None:
            return
        if event.tail:
            self._update(question, event.tail)
        self._finish(question, event)

    def _end(self, answer_id: int, reason: FinishReason) -> None:
        question = self._questions.get(answer_id)
        if question is None:
            return
        if question.state is AnswerState.WAITING_CONTEXT:
            self._finish_unstarted(question, reason)
        else:
            self._engine.submit(EndAnswer(answer_id, reason))

    def _finish_unstarted(self, question: Question, reason: FinishReason, error: str = "") -> None:
        """End a question that no engine knows of yet."""
        stream = self.streams[question.version.stream]
        epoch = stream.history.epoch(question.version.epoch)
        question.context = context_used(question.version, epoch)
        stream.history.release(question.version)
        answer_id = question.answer.answer_id
        self._finish(question, AnswerFinished(answer_id, reason, "", (), error, 0))
        stream.ingest()

    def _finish(self, question: Question, event: AnswerFinished) -> None:
        now = self._clock()
        question.state = AnswerState.FINISHED
        metrics = question.metrics(now, event.running_answers, self._cache.stats())
        assert question.context is not None
        result = question.result(event, question.context, metrics)
        del self._questions[event.answer_id]
        self._finished.add(question.prompt, result)
        if question.options.commit and event.reason in COMPLETE:
            result = self._commit_on_finish(result)
        self._tell(self._listener.answer_finished, question.answer, result)
        question.answer.put(result)
        if not self._questions:
            waiting, self._on_idle = self._on_idle, []
            for done in waiting:
                done()

    def _update(self, question: Question, delta: str = "") -> None:
        update = question.update(delta)
        question.answer.put(update)
        self._tell(self._listener.answer_updated, question.answer, update)

    # ---------------------------------------------------------------- commit
    def commit(self, answer_id: int) -> Version:
        """Append a finished answer to its history. Raises CommitError or HistoryFull."""
        prompt, result = self._finished.to_commit(answer_id)
        ids = result.token_ids
        if result.finish_reason is FinishReason.STOP_STRING:
            ids = self._tokenize(result.text)  # without the stop string
        stream = self.streams[result.stream]
        if result.context.version.epoch < stream.first_epoch:
            raise CommitError(
                f"answer {answer_id} is about what stream {result.stream!r} saw before its reset"
            )
        tokens = self._prompt.turn(prompt, ids)
        version = stream.history.append_turn(tokens, f"{result.question} -> {result.text}")
        self._finished.mark_committed(answer_id)
        stream.ingest()
        return version

    def _commit_on_finish(self, result: AnswerResult) -> AnswerResult:
        try:
            self.commit(result.answer_id)
        except (CommitError, HistoryFull) as error:
            return replace(result, error=f"the answer was not committed: {error}")
        return replace(result, committed=True)

    # ---------------------------------------------------------------- ends
    def end_all(self, done: Callable[[], None]) -> None:
        """Cancel every question; ``done`` is called when the last one has ended."""
        self.active = False
        for stream in self.streams.values():
            stream.forget_standby()
        if not self._questions:
            done()
            return
        self._on_idle.append(done)
        for answer_id in list(self._questions):
            self._end(answer_id, FinishReason.CANCELLED)

    def _engine_failed(self, event: EngineFailed) -> None:
        self._engine_error = f"engine {event.engine} failed: {event.error}"
        _logger.error(self._engine_error)
        self._end_without_engine(FinishReason.ERROR, self._engine_error)
        self._tell(self._listener.engine_failed, event.engine, event.error)

    def _end_without_engine(self, reason: FinishReason, error: str) -> None:
        for answer_id, question in list(self._questions.items()):
            if question.state is AnswerState.WAITING_CONTEXT:
                self._finish_unstarted(question, reason, error)
            else:
                self._finish(question, AnswerFinished(answer_id, reason, "", (), error, 0))

    def _end_overdue(self) -> None:
        for answer_id, question in list(self._questions.items()):
            if question.deadline is not None and question.deadline <= self._clock():
                # Asked once: the engine ends the answer at its next step.
                question.options = replace(question.options, deadline_s=0.0)
                self._end(answer_id, FinishReason.DEADLINE)

    # ---------------------------------------------------------------- readings
    def question_status(self) -> QuestionStatus:
        return QuestionStatus(
            pending=len(self._questions),
            max_pending=self._admission.limits.max_pending,
            accepted=self._accepted,
            rejected=dict(self._rejections),
            finished=dict(self._finished.endings),
        )

    def _tell(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception:
            _logger.exception("the listener failed in %s", getattr(method, "__name__", method))
