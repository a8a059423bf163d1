"""Gathers what a planner decides from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from edge_vlm_ros.history import Epoch
from edge_vlm_ros.placement.residency import TrunkRecord
from edge_vlm_ros.planning.rates import Fractions
from edge_vlm_ros.planning.state import (
    AnswerLoad,
    EngineState,
    Held,
    PlanningState,
    QuestionState,
)
from edge_vlm_ros.planning.state import StreamState as PlanningStream

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

    def state(self, usable: Collection[str], now: float) -> PlanningState:
        """Everything but the question, of the engines in ``usable``."""
        answers = self._answers(now)
        records: dict[str, list[TrunkRecord]] = defaultdict(list)
        for record in self._trunks.table:
            records[record.engine].append(record)
        encoding = any(stream.is_encoding for stream in self._streams.values())
        return PlanningState(
            engines=tuple(self._engine(name, answers[name], records[name], now) for name in usable),
            streams=tuple(self._stream(stream, now) for stream in self._streams.values()),
            importable=frozenset(
                (source, destination)
                for source in usable
                for destination in usable
                if source != destination and self._slots.can_import(source, destination)
            ),
            encoders_busy=self._encoders if encoding else (),
        )

    def question(self, question: Question, epoch: Epoch, usable: Collection[str]) -> QuestionState:
        """``question``, whose version is encoded, with what each engine in ``usable`` has of it."""
        options, version = question.options, question.version
        fresh = not question.token_ids  # what has begun is not handed off once more
        asked = options.prefill_engine if options.prefill_engine in usable and fresh else ""
        return QuestionState(
            stream=version.stream,
            history_tokens=epoch.tokens(version.n),
            prompt_tokens=len(question.prompt) + max(0, len(question.token_ids) - 1),
            expected_tokens=self._estimates[version.stream].tokens_left(question),
            held={name: self._held(name, version.stream, epoch, version.n) for name in usable},
            engine=options.engine if options.engine in usable else "",
            prefill_engine=asked,
            path="" if question.path is Path.ANY else question.path.value,
            may_hand_off=fresh,
        )

    def _engine(
        self, name: str, answers: list[AnswerLoad], records: Iterable[TrunkRecord], now: float
    ) -> EngineState:
        config = self._slots[name].config
        growing = [record for record in records if record.tokens_to_compute]
        to_compute = sum(record.tokens_to_compute for record in growing)
        cell_bytes = self._slots.cell_bytes(name)
        to_export, to_import = self._trunks.transfers(name)
        to_import += sum(record.tokens_to_import for record in records)
        return EngineState(
            name=name,
            max_parallel=config.max_parallel,
            chunk_tokens=config.chunk_tokens,
            ingest_share=config.ingest_share,
            batching=self._slots.engine(name).batching,
            cell_bytes=cell_bytes,
            free_cells=self._trunks.free_cells(name),
            answers=tuple(answers),
            ingest_tokens=to_compute,
            ingest_history_tokens=(
                sum(record.computed.tokens for record in growing) // len(growing) if growing else 0
            ),
            export_bytes=to_export * cell_bytes,
            import_bytes=to_import * cell_bytes,
            routed=self._routing.of(name),
        )

    def _answers(self, now: float) -> dict[str, list[AnswerLoad]]:
        """By engine, those in its hands first."""
        loads: dict[str, list[AnswerLoad]] = defaultdict(list)
        placed = [question for question in self._questions.values() if question.engine]
        for question in sorted(placed, key=lambda q: (q.running_on is None, q.answer_id)):
            left = self._estimates[question.version.stream].tokens_left(question)
            history = self._history_tokens(question)
            prompt = len(question.prompt) if question.first_token is None else 0
            waits = 0.0 if question.running_on else max(0.0, question.context_due - now)
            if question.is_handoff:
                first = AnswerLoad(history, prompt, 1.0, waits)
                loads[question.prefill_engine].append(first)
                loads[question.engine].append(AnswerLoad(history, 0, left, waits))
            else:
                load = AnswerLoad(history, prompt, left, waits)
                loads[question.running_on or question.engine].append(load)
        return loads

    def _history_tokens(self, question: Question) -> int:
        stream = self._streams[question.version.stream]
        return stream.history.epoch(question.version.epoch).tokens(question.version.n)

    def _held(self, engine: str, stream: str, epoch: Epoch, n: int) -> Held:
        record = self._trunks.table.get(engine, stream, epoch.number)
        tokens = epoch.tokens(n)
        cached = self._trunks.cached(stream, epoch, n, engine)
        if record is None:
            return Held(cached=cached)
        return Held(
            computed=min(tokens, record.computed.tokens),
            submitted=min(tokens, record.submitted.tokens),
            cached=cached,
        )

    def _stream(self, stream: StreamState, now: float) -> PlanningStream:
        estimates = self._estimates[stream.name]
        epoch = stream.history.current
        records = self._trunks.table.of_epoch(stream.name, epoch.number)
        ingesting = [record for record in records if record.engine == stream.ingest_engine]
        return PlanningStream(
            name=stream.name,
            ingest_engine=stream.ingest_engine or "",
            frame_rate_hz=stream.frame_rate.value(now),
            frame_tokens=stream.frame_tokens,
            history_tokens=epoch.registered_tokens,
            ordered_tokens=sum(record.tokens_to_compute for record in ingesting),
            held={record.engine: record.computed.tokens for record in records},
            question_rate_hz=estimates.questions.value(now),
            prompt_tokens=estimates.prompt_tokens.value,
            answer_tokens=estimates.answer_tokens_seen,
        )
