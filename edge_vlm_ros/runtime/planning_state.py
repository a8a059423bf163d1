"""Gathers what a planner decides from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import permutations

from edge_vlm_ros.history import Epoch
from edge_vlm_ros.placement.residency import TrunkRecord
from edge_vlm_ros.planning.rates import Fractions
from edge_vlm_ros.planning.rebalancing import RunningAnswer
from edge_vlm_ros.planning.state import (
    AnswerLoad,
    EngineState,
    Held,
    PlanningState,
    QuestionState,
    UnplacedQuestion,
)
from edge_vlm_ros.planning.state import StreamState as PlanningStream

from .answer import AnswerState
from .engine_slots import EngineSlots
from .estimates import StreamEstimates
from .path import Path
from .question import Question
from .stream import StreamState
from .trunks import Trunks


class StateReader:
    """Reads the coordinator's parts; owned by its thread."""

    def __init__(
        self,
        streams: Mapping[str, StreamState],
        slots: EngineSlots,
        trunks: Trunks,
        questions: Mapping[int, Question],
        estimates: Mapping[str, StreamEstimates],
        routing: Fractions,
        encoders: tuple[str, ...],
    ) -> None:
        self._streams = streams
        self._slots = slots
        self._trunks = trunks
        self._questions = questions
        self._estimates = estimates
        self._routing = routing
        self._encoders = encoders

    def state(
        self, usable: Collection[str], now: float, planned: Collection[Question] = ()
    ) -> PlanningState:
        """Everything but the questions that are ``planned``, of the engines in ``usable``."""
        ids = {question.answer_id for question in planned}
        others = [q for q in self._questions.values() if q.answer_id not in ids]
        answers = self._answers(others, now)
        by_engine: dict[str, list[TrunkRecord]] = defaultdict(list)
        by_stream: dict[str, list[TrunkRecord]] = defaultdict(list)
        for record in self._trunks.table:
            by_engine[record.engine].append(record)
            by_stream[record.trunk.stream].append(record)
        streams = self._streams.values()
        encoding = any(stream.is_encoding for stream in streams)
        return PlanningState(
            engines=tuple(
                self._engine(name, answers[name], by_engine[name], now) for name in usable
            ),
            streams=tuple(self._stream(stream, by_stream[stream.name], now) for stream in streams),
            unplaced=tuple(self._unplaced(others, {q.version.stream for q in planned})),
            importable=_pairs(usable, self._slots.can_import),
            equal=_pairs(usable, self._slots.are_equal),
            encoders_busy=self._encoders if encoding else (),
        )

    def question(self, question: Question, epoch: Epoch, usable: Collection[str]) -> QuestionState:
        """``question``, whose version is encoded, with what each engine in ``usable`` has of it."""
        options, version = question.options, question.version
        question.history_tokens = epoch.tokens(version.n)
        fresh = not question.token_ids  # what has begun is not handed off once more
        first = options.prefill_engine or options.engine
        return QuestionState(
            stream=version.stream,
            history_tokens=question.history_tokens,
            prompt_tokens=len(question.prompt) + max(0, len(question.token_ids) - 1),
            expected_tokens=self._estimates[version.stream].tokens_left(question),
            held={name: self._held(name, version.stream, epoch, version.n) for name in usable},
            engine=options.engine if options.engine in usable else "",
            prefill_engine=first if first in usable and fresh else "",
            path="" if question.path is Path.ANY else question.path.value,
            may_hand_off=fresh,
        )

    def backlog(
        self, usable: Collection[str], now: float
    ) -> tuple[PlanningState, list[QuestionState]]:
        """The questions whose version is encoded and that no engine has begun, those first whose
        history some engine holds; and the state without them."""
        found: list[Question] = []
        states: list[QuestionState] = []
        for question in self._questions.values():
            version = question.version
            if question.is_open and not question.failed_on:
                epoch = self._streams[version.stream].history.epoch(version.epoch)
                if version.n <= epoch.encoded_n:
                    found.append(question)
                    states.append(self.question(question, epoch, usable))
        return self.state(usable, now, found), sorted(states, key=_is_nowhere)

    def running(self, usable: Collection[str]) -> list[RunningAnswer]:
        """The answers that are being decoded and may go on on any engine in ``usable``. A history
        that is not kept on engines any more would have to be computed anew for that: those stay."""
        found = []
        for question in self._questions.values():
            engine, version = question.running_on, question.version
            if engine is None or engine not in usable or not question.may_move:
                continue
            history = self._streams[version.stream].history
            epoch = history.epoch(version.epoch)
            if history.wants_kv(epoch):
                state = self.question(question, epoch, usable)
                found.append(RunningAnswer(question.answer_id, engine, state))
        return found

    def _engine(
        self, name: str, answers: list[AnswerLoad], records: Iterable[TrunkRecord], now: float
    ) -> EngineState:
        config = self._slots[name].config
        growing = [record for record in records if self._tokens_to_compute(record)]
        to_compute = sum(self._tokens_to_compute(record) for record in growing)
        cell_bytes = self._slots.cell_bytes(name)
        to_export, to_import = self._trunks.outlook.transfers(name)
        to_import += sum(record.tokens_to_import for record in records)
        return EngineState(
            name=name,
            max_parallel=config.max_parallel,
            chunk_tokens=config.chunk_tokens,
            ingest_share=config.ingest_share,
            batching=self._slots.engine(name).batching,
            cell_bytes=cell_bytes,
            free_cells=self._trunks.outlook.free_cells(name),
            spare_cells=self._trunks.outlook.spare_cells(name),
            answers=tuple(answers),
            ingest_tokens=to_compute,
            ingest_history_tokens=(
                sum(record.computed.tokens for record in growing) // len(growing) if growing else 0
            ),
            export_bytes=to_export * cell_bytes,
            import_bytes=to_import * cell_bytes,
            routed=self._routing.of(name),
        )

    def _answers(self, questions: Iterable[Question], now: float) -> dict[str, list[AnswerLoad]]:
        """By engine, those in its hands first."""
        loads: dict[str, list[AnswerLoad]] = defaultdict(list)
        running, waiting = [], []
        for question in questions:
            if question.running_on is not None:
                running.append(question)
            elif question.engine:
                waiting.append(question)
        for question in running + waiting:
            left = self._estimates[question.version.stream].tokens_left(question)
            history, prompt = question.history_tokens, _tokens_to_prefill(question)
            waits = 0.0 if question.running_on else max(0.0, question.context_due - now)
            if question.is_handoff:
                loads[question.prefill_engine].append(AnswerLoad(history, prompt, 1.0, waits))
                first = max(waits, _first_token_due(question) - now)
                loads[question.engine].append(AnswerLoad(history, 0, left, first))
            else:
                load = AnswerLoad(history, prompt, left, waits)
                loads[question.running_on or question.engine].append(load)
        return loads

    def _unplaced(
        self, questions: Iterable[Question], planned: Collection[str]
    ) -> Iterator[UnplacedQuestion]:
        """Of streams about which a question is ``planned``, encoded ones come after it."""
        others = [q for q in questions if not q.engine and not q.waits_for_place]
        missing = [_frames_to_encode(stream) for stream in self._streams.values() if others]
        for question in others:
            stream, version = self._streams[question.version.stream], question.version
            epoch = stream.history.epoch(version.epoch)
            if version.n <= epoch.encoded_n and stream.name in planned:
                continue
            load = AnswerLoad(
                epoch.registered_tokens,
                len(question.prompt),
                self._estimates[version.stream].tokens_left(question),
            )
            own = max(0, version.n - epoch.encoded_n)
            # Streams take turns with the encoder.
            frames = sum(min(own, frames) for frames in missing)
            yield UnplacedQuestion(stream.ingest_engine or "", load, frames)

    def _held(self, engine: str, stream: str, epoch: Epoch, n: int) -> Held:
        record, tokens = self._trunks.table.get(engine, stream, epoch.number), epoch.tokens(n)
        if record is not None and record.computed.n >= n:
            return Held(tokens, tokens)
        cached = self._trunks.outlook.cached(stream, epoch, n, engine)
        if record is None:
            return Held(cached=cached)
        return Held(
            computed=min(tokens, record.computed.tokens),
            submitted=min(tokens, self._due_tokens(record)),
            cached=cached,
            reserved=record.cells if record.reserved else 0,
        )

    def _due_tokens(self, record: TrunkRecord) -> int:
        """Where a trunk will be when all that was sent is carried out; one that waits for an import
        of what comes before new frames, when they are computed, too."""
        stream = self._streams[record.trunk.stream]
        epoch = stream.history.current
        if record.export is not None and record.trunk.epoch == epoch.number:
            if stream.grows(record):
                return epoch.tokens(epoch.encoded_n)
        return self._trunks.outlook.ordered_tokens(record)

    def _tokens_to_compute(self, record: TrunkRecord) -> int:
        after = self._due_tokens(record) - self._trunks.outlook.ordered_tokens(record)
        return record.tokens_to_compute + max(0, after)

    def _stream(
        self, stream: StreamState, records: Iterable[TrunkRecord], now: float
    ) -> PlanningStream:
        estimates = self._estimates[stream.name]
        epoch, engine = stream.history.current, stream.ingest_engine or ""
        current = {r.engine: r for r in records if r.trunk.epoch == epoch.number}
        return PlanningStream(
            name=stream.name,
            ingest_engine=engine,
            frame_rate_hz=stream.frame_rate.value(now),
            frame_tokens=stream.frame_tokens,
            history_tokens=epoch.registered_tokens,
            ordered_tokens=self._tokens_to_compute(current[engine]) if engine in current else 0,
            held={name: record.computed.tokens for name, record in current.items()},
            stays=stream.pinned or stream.taken_over,
            question_rate_hz=estimates.questions.value(now),
            prompt_tokens=estimates.prompt_tokens.value,
            answer_tokens=estimates.answer_tokens_seen,
        )


def _frames_to_encode(stream: StreamState) -> int:
    epoch = stream.history.current
    return len(epoch.items) - epoch.encoded_n


def _pairs(names: Collection[str], holds: Callable[[str, str], bool]) -> frozenset[tuple[str, str]]:
    return frozenset(pair for pair in permutations(names, 2) if holds(*pair))


def _tokens_to_prefill(question: Question) -> int:
    """What was generated elsewhere is computed again, unless it came with the question."""
    if question.first_token is None:
        return len(question.prompt)
    is_decoded = question.running_on is not None and question.state is AnswerState.DECODING
    if is_decoded or question.prefilled is not None:
        return 0
    return len(question.prompt) + len(question.token_ids) - 1


def _first_token_due(question: Question) -> float:
    return question.arrived + question.plan.predicted_first_token_s if question.plan else 0.0


def _is_nowhere(question: QuestionState) -> bool:
    return all(held.computed < question.history_tokens for held in question.held.values())
