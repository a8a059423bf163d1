"""Takes accepted questions to their answers: engines, state, handing over, going on elsewhere."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AnswerHandedOff,
    EndAnswer,
    FinishReason,
    HandOffAnswer,
    Origin,
    TokensGenerated,
)
from edge_vlm_ros.history import Epoch
from edge_vlm_ros.placement.residency import TrunkRecord

from .answer import AnswerState
from .engine_slots import EngineSlots
from .placing import Placing
from .planner import Planner
from .question import Question, StateBefore, context_used
from .stream import StreamState
from .trunks import Trunks

_logger = logging.getLogger(__name__)

MAX_REPLANNED = 2
"""Questions in a row that may find no place before no more are tried."""

END_GRACE_S = 3.0
"""How long an engine may take to end an answer: it does so at its next step."""


class Answering:
    """Questions from acceptance to their end. Owned by the coordinator's thread.

    ``updated`` hears of every new state and piece of text, ``ended`` of every end,
    ``moved`` of an answer that goes on on another engine and why.
    """

    def __init__(
        self,
        streams: Mapping[str, StreamState],
        slots: EngineSlots,
        trunks: Trunks,
        planner: Planner,
        clock: Callable[[], float],
        updated: Callable[[Question, str], None],
        ended: Callable[[Question, AnswerFinished], None],
        moved: Callable[[Question, str], None],
    ) -> None:
        self.questions: dict[int, Question] = {}
        self.paths: Counter[str] = Counter({"local": 0, "import": 0, "replay": 0})
        self.handoffs = self.failovers = 0
        self.residency_hits = self.residency_misses = 0
        self._streams = streams
        self._slots = slots
        self._trunks = trunks
        self._planner = planner
        planner.watch(self.questions)
        self._clock = clock
        self._placing = Placing(
            planner,
            slots,
            trunks,
            clock,
            lambda question, text: self._end_here(question, FinishReason.ERROR, text),
        )
        self._updated = updated
        self._ended = ended
        self._moved = moved

    # ---------------------------------------------------------------- on the way
    def accept(self, question: Question) -> None:
        self.questions[question.answer_id] = question
        self._planner.question_accepted(question)
        self._updated(question, "")

    def advance(self, stream: str | None = None) -> None:
        """Take every question (about ``stream``) as far as it can go now, oldest first. Those that
        wait for a place on an engine go on when an answer ends, or when all are advanced."""
        for question in list(self.questions.values()):
            if stream is None:
                question.waits_for_place = False
            if stream in (None, question.version.stream) and not question.waits_for_place:
                self._advance(question)

    def _place_waiting(self, engine: str | None) -> None:
        """``engine`` has a place again (None: what ended had none): the oldest who wait are planned
        anew, and no more once it is taken or some go on waiting. Planning all of them for every
        answer that ends would take more time than there is under load."""
        waiting = [question for question in self.questions.values() if question.waits_for_place]
        left = MAX_REPLANNED
        for question in waiting:
            question.waits_for_place = False
            self._advance(question)
            left -= question.waits_for_place
            if not left or engine in (question.engine, question.prefill_engine):
                break
        self._rebalance()

    def _advance(self, question: Question) -> None:
        if question.ending is not None or not question.wants_kv:
            return
        version = question.version
        stream = self._streams[version.stream]
        epoch = stream.history.epoch(version.epoch)
        if version.n > epoch.encoded_n:
            return
        if not (question.engine or self._placing.place(question, epoch)):
            return
        if question.running_on is None:
            record = self._need(question, stream, epoch, question.next_engine)
            if record is not None and self._placing.place_again(question, epoch):
                record = self._need(question, stream, epoch, question.next_engine)
            if record is not None:
                self._start(question, stream, epoch, record)
        if question.is_handoff and question.running_on is not None:
            # The second engine gets ready while the first computes. Not earlier: two questions
            # that go opposite ways would each keep the room that the other needs first.
            self._need(question, stream, epoch, question.engine)
        if question.moving_to and question.running_on is not None:
            self._leave(question, stream, epoch)

    def _leave(self, question: Question, stream: StreamState, epoch: Epoch) -> None:
        """Have the engine give the answer up once the other one holds the history."""
        if question.is_leaving or question.running_on is None:
            return
        if self._need(question, stream, epoch, question.moving_to) is not None:
            question.is_leaving = True
            self._slots.engine(question.running_on).submit(HandOffAnswer(question.answer_id))
        elif not self._trunks.table.has_room(question.answer_id, question.moving_to):
            self._stay(question)  # others who wait for room there must not wait behind it

    def _rebalance(self) -> None:
        """Have an answer go on on an engine with less to do, if that is planned: one at a time, and
        none while there are questions for such an engine."""
        for question in self.questions.values():
            if question.moving_to or question.waits_for_place:
                return
        move = self._planner.move([slot.config.name for slot in self._slots.ready])
        if move is None:
            return
        question = self.questions[move.answer_id]
        question.moving_to, question.wants_kv = move.engine, True
        question.state_since.pop(move.engine, None)
        self._streams[question.version.stream].history.want(question.version)
        self._planner.moved(question, move)
        self._advance(question)

    def _stay(self, question: Question) -> None:
        """An answer that was to move goes on where it is."""
        self._trunks.unneed(question.answer_id, question.moving_to)
        if question.is_leaving:  # it comes back to the engine that gives it up
            question.moving_to = question.engine
            question.state_since.pop(question.engine, None)
            return
        question.moving_to, question.wants_kv = "", False
        self._streams[question.version.stream].history.unwant(question.version)

    def take_over(self, engine: str) -> str:
        """Have an engine that is done with its own frames go on with those of another stream, if
        that is planned; returns which. Its questions are to be advanced then."""
        name = self._planner.take_over(engine)
        if name:
            _logger.info("engine %s goes on with the frames of stream %s", engine, name)
            self._placing.unplace(q for q in self.questions.values() if q.version.stream == name)
            self._streams[name].let_take_over(engine)
        return name

    def _need(
        self, question: Question, stream: StreamState, epoch: Epoch, engine: str
    ) -> TrunkRecord | None:
        n = question.version.n
        if engine not in question.state_since:
            known = self._trunks.table.get(engine, stream.name, epoch.number)
            question.state_since[engine] = StateBefore(
                held_n=0 if known is None else known.computed.n,
                published_n=epoch.published_n,
                ingests=engine == stream.ingest_engine,
            )
            question.placed = question.placed or self._clock()
        path = question.planned_path if engine == question.prefill_engine else question.path
        return self._trunks.need(stream, epoch, n, engine, path, question.answer_id)

    def _start(
        self, question: Question, stream: StreamState, epoch: Epoch, record: TrunkRecord
    ) -> None:
        """Have the engine fork from ``record``, which holds the version."""
        if question.context is None:
            question.context = context_used(question.version, epoch)
            question.context_ready = self._clock()
        self._note_use(question, record)
        self._slots.engine(record.engine).submit(question.start(record.trunk, epoch))
        question.running_on = record.engine
        question.state = AnswerState.QUEUED
        # The fork precedes any later command, so the trunk may go now.
        self._trunks.unneed(question.answer_id, record.engine)
        if record.engine == question.engine:
            question.wants_kv = False
            stream.history.unwant(question.version)
        self._updated(question, "")

    def _note_use(self, question: Question, record: TrunkRecord) -> None:
        before, n = question.state_since[record.engine], question.version.n
        came = record.tokens_by_origin(before.held_n, n)
        known = min(n, before.published_n) if before.ingests else n
        replayed = record.tokens_by_origin(before.held_n, known)[Origin.COMPUTED]
        use = question.use
        use.imported += came[Origin.IMPORTED]
        use.replayed += replayed
        if record.engine == question.prefill_engine and not question.handed_off:
            fresh = came[Origin.COMPUTED] - replayed
            tokens = question.context.tokens if question.context else 0
            use.reused = tokens - came[Origin.IMPORTED] - replayed - fresh
            local = not came[Origin.IMPORTED] and not replayed
            self.residency_hits += local
            self.residency_misses += not local
        self._trunks.counts.replayed_tokens += replayed
        use.moved_bytes += came[Origin.IMPORTED] * self._slots.cell_bytes(record.engine)

    # ---------------------------------------------------------------- events of engines
    def prefill_started(self, engine: str, answer_id: int) -> None:
        question = self._running(engine, answer_id)
        if question is not None and question.prefill_started is None:
            question.prefill_started = self._clock()
            question.state = AnswerState.PREFILL
            self._updated(question, "")

    def tokens(self, engine: str, event: TokensGenerated) -> None:
        question = self._running(engine, event.answer_id)
        if question is None:
            return
        question.token_ids += event.token_ids
        is_first = question.first_token is None
        if is_first:
            question.first_token = self._clock()
        elif not event.delta and question.state is AnswerState.DECODING:
            return
        question.state = AnswerState.DECODING
        self._updated(question, event.delta)
        if is_first:
            self._rebalance()

    def handed_off(self, engine: str, event: AnswerHandedOff) -> None:
        question = self._running(engine, event.answer_id)
        if question is None:
            return
        question.running_on = None
        if question.ending is not None:
            self._end_here(question, question.ending)
            return
        question.leave()
        if event.state is not None and self._slots.can_import(engine, question.engine):
            question.prefilled = event.state
            question.use.moved_bytes += event.state.n_bytes
        self.handoffs += 1
        self._advance(question)
        self._place_waiting(engine)

    def finished(self, engine: str, event: AnswerFinished) -> None:
        question = self._running(engine, event.answer_id)
        if question is None:
            return
        if event.reason is FinishReason.ERROR and self._try_elsewhere(question, event.error):
            self._place_waiting(engine)
            return
        if event.tail:
            self._updated(question, event.tail)
        self._finish(question, event)

    # ---------------------------------------------------------------- ends
    def end(self, answer_id: int, reason: FinishReason) -> None:
        """End a question as soon as possible, with the text it has."""
        question = self.questions.get(answer_id)
        if question is None or question.ending is not None:
            return
        if question.running_on is None:
            self._end_here(question, reason)
        else:
            question.ending = reason
            question.end_by = self._clock() + END_GRACE_S
            self._slots.engine(question.running_on).submit(EndAnswer(answer_id, reason))

    def end_overdue(self, now: float) -> None:
        """End what has come to its deadline, and what an engine does not end."""
        for question in list(self.questions.values()):
            if question.deadline is None or question.deadline > now:
                continue
            if question.ending is None:
                self.end(question.answer_id, FinishReason.DEADLINE)
            else:
                _logger.warning(
                    "engine %s does not end answer %d: it is ended without it",
                    question.running_on,
                    question.answer_id,
                )
                self._end_here(question, question.ending)

    def end_all_here(self, reason: FinishReason, error: str) -> None:
        """End every question without asking any engine."""
        for question in list(self.questions.values()):
            self._end_here(question, reason, error)

    def trunk_failed(self, record: TrunkRecord, error: str) -> None:
        """An engine cannot compute a history that questions wait for there."""
        for question in list(self.questions.values()):
            version = question.version
            if (version.stream, version.epoch) != (record.trunk.stream, record.trunk.epoch):
                continue
            if question.moving_to:
                if question.moving_to == record.engine != question.running_on:
                    question.failed_on.add(record.engine)
                    self._stay(question)
                continue
            waits = question.wants_kv and question.ending is None
            if waits and question.next_engine in ("", record.engine):
                question.failed_on.add(record.engine)
                if not self._try_elsewhere(question, error):
                    self._end_here(question, FinishReason.ERROR, error)

    def engine_lost(self, engine: str, error: str) -> None:
        """Take the questions of a failed engine to another one, or end them."""
        if not self._slots.ready:
            self.end_all_here(FinishReason.ERROR, f"{error}; no other engine is left")
            return
        for question in list(self.questions.values()):
            if engine == question.moving_to and question.running_on != engine:
                self._stay(question)
            if engine not in (question.engine, question.prefill_engine):
                continue
            if question.ending is not None and question.running_on == engine:
                self._end_here(question, question.ending)
            elif question.running_on in (None, engine):
                self._move(question, error)
            elif question.is_handoff:
                # It is being prefilled elsewhere: only where it was to go must change.
                question.engine = question.prefill_engine

    def _try_elsewhere(self, question: Question, error: str) -> bool:
        """Go on on an engine that has not failed on the question; False when there is none."""
        if question.prefilled is not None:
            question.prefilled = None  # it may have been refused: the same engine can do without
        elif question.running_on is not None:
            question.failed_on.add(question.running_on)
        if question.ending is not None or not self._placing.usable_engines(question):
            return False
        self._move(question, error)
        return True

    def _move(self, question: Question, why: str) -> None:
        """Choose anew. What has been generated stays: the next engine goes on after it."""
        was_running = question.running_on is not None
        stream = self._streams[question.version.stream]
        question.forget_places()
        self._trunks.unneed(question.answer_id)
        if not question.wants_kv:
            question.wants_kv = True
            stream.history.want(question.version)
        if was_running:
            question.failovers += 1
            self.failovers += 1
        stream.ingest()
        self._advance(question)
        if was_running and question.engine:
            self._moved(question, why)

    def _end_here(self, question: Question, reason: FinishReason, error: str = "") -> None:
        """End a question that no engine has in hand, or none that will answer."""
        ids = tuple(question.token_ids)
        self._finish(question, AnswerFinished(question.answer_id, reason, "", ids, error, 0))

    def _finish(self, question: Question, event: AnswerFinished) -> None:
        stream, engine = self._streams[question.version.stream], question.running_on
        question.running_on = None
        question.state = AnswerState.FINISHED
        if question.context is None:
            epoch = stream.history.epoch(question.version.epoch)
            question.context = context_used(question.version, epoch)
        else:
            self.paths[question.use.path.value] += 1
        self._trunks.unneed(question.answer_id)
        if question.wants_kv:
            question.wants_kv = False
            stream.history.unwant(question.version)
        stream.history.release(question.version)
        del self.questions[question.answer_id]
        self._planner.question_ended(question, event.reason)
        self._ended(question, event)
        stream.ingest()
        self._place_waiting(engine)

    def _running(self, engine: str, answer_id: int) -> Question | None:
        """The question, unless it has ended or gone elsewhere."""
        question = self.questions.get(answer_id)
        return question if question is not None and question.running_on == engine else None
