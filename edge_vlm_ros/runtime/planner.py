"""Places questions and ingestion as a policy says, and compares what was foreseen with reality."""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from edge_vlm_ros.engines.protocol import FinishReason
from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.history import Epoch
from edge_vlm_ros.planning.costs import ENCODER
from edge_vlm_ros.planning.learning import CostLearner
from edge_vlm_ros.planning.plan import Objective, Plan
from edge_vlm_ros.planning.policies import Policy
from edge_vlm_ros.planning.rates import Fractions
from edge_vlm_ros.planning.rebalancing import Move
from edge_vlm_ros.vision.events import FrameEncoded

from .engine_slots import EngineSlots
from .estimates import StreamEstimates
from .path import Path
from .planning_state import StateReader
from .question import Question
from .status import (
    CostError,
    EngineRouting,
    PlanningStatus,
    PlanRecord,
    PredictionError,
    factor_error,
)
from .stream import StreamState
from .trunks import Trunks

_logger = logging.getLogger(__name__)

OBSERVE_PERIOD_S = 0.25
"""How often finished steps are looked at: seldom enough to cost nothing, often enough for plans."""

_RECENT = 64
"""Predictions whose errors are reported."""

_COMPLETE = (FinishReason.STOP, FinishReason.STOP_STRING, FinishReason.LENGTH)


class Planner:
    """Owned by the coordinator's thread.

    ``planned`` and ``ended`` hear of every plan when
    it is made and when its answer has ended; ``stepped`` of all steps as they are collected.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        learner: CostLearner,
        streams: Mapping[str, StreamState],
        slots: EngineSlots,
        trunks: Trunks,
        clock: Callable[[], float],
    ) -> None:
        self.policy = policy
        self.objective: Objective = objective
        self.questions: Mapping[int, Question] = {}
        self.planned: Callable[[PlanRecord], None] = lambda record: None
        self.ended: Callable[[PlanRecord], None] = lambda record: None
        self.stepped: Callable[[str, list[StepRecord]], None] = lambda name, steps: None
        self._learner = learner
        self._streams = streams
        self._slots = slots
        self._trunks = trunks
        self._encoded: list[StepRecord] = []
        self._clock = clock
        self._estimates = {name: StreamEstimates() for name in streams}
        self._routing = Fractions()
        self._observed_at = 0.0
        self._decisions = 0
        self._decision_s = self._longest_s = 0.0
        self._first_token_errors: deque[float] = deque(maxlen=_RECENT)
        self._finished_errors: deque[float] = deque(maxlen=_RECENT)

    def watch(self, questions: Mapping[int, Question]) -> None:
        """The questions under way, by answer id."""
        self.questions = questions
        self._reader = StateReader(
            self._streams,
            self._slots,
            self._trunks,
            questions,
            self._estimates,
            self._routing,
            (ENCODER,),
        )

    def use(self, policy: Policy, objective: Objective) -> None:
        """Decide with another policy from now on; what has been placed stays."""
        self.policy, self.objective = policy, objective

    # ---------------------------------------------------------------- decisions
    def place(self, question: Question, epoch: Epoch, usable: Collection[str]) -> bool:
        """Choose engines and path for a question whose version is encoded, among the engines in
        ``usable``; False: it waits until one of them is free."""
        now, began = self._clock(), time.perf_counter()
        plan = self.policy.plan(
            self._reader.state(usable, now, (question,)),
            self._reader.question(question, epoch, usable),
            self._learner.model(),
        )
        seconds = time.perf_counter() - began
        self._decisions += 1
        self._decision_s += seconds
        self._longest_s = max(self._longest_s, seconds)
        if plan is None:
            return False
        chosen = plan.chosen
        question.engine, question.prefill_engine = chosen.decode_engine, chosen.prefill_engine
        question.planned_path = _path(question, plan)
        question.planned_at, question.context_due = now, now + chosen.context_s
        self._count(question, chosen.decode_engine, now)
        waited = now - question.arrived
        question.plan = PlanRecord(
            answer_id=question.answer_id,
            stream=question.version.stream,
            plan=plan,
            objective=self.objective,
            decided_s=waited,
            predicted_first_token_s=waited + chosen.first_token_s,
            predicted_finished_s=waited + chosen.finished_s,
        )
        self.planned(question.plan)
        return True

    def _count(self, question: Question, engine: str, now: float) -> None:
        """Every question counts for one engine: the last that it was planned for."""
        if question.routed is None:
            self._routing.add(engine, now)
            question.routed = engine, now
        else:
            before, at = question.routed
            self._routing.correct(before, engine, at, now)
            question.routed = engine, at

    def move(self, usable: Collection[str]) -> Move | None:
        """The running answer that is to go on on another engine in ``usable``, if any."""
        if len(usable) < 2:
            return None
        counts = dict.fromkeys(usable, 0)
        for question in self.questions.values():
            if question.running_on in counts:
                counts[question.running_on] += 1
        if not self.policy.may_move(counts, self._learner.model()):
            return None
        running = self._reader.running(usable)
        if not running:
            return None
        state = self._reader.state(usable, self._clock())
        try:
            return self.policy.move(state, running, self._learner.model())
        except Exception:  # all answers can go on where they are
            _logger.exception("it could not be planned which answer is to move")
            return None

    def moved(self, question: Question, move: Move) -> None:
        """Note what is foreseen for a question that moves."""
        now, first = self._clock(), question.first_token
        assert first is not None
        question.plan = PlanRecord(
            answer_id=question.answer_id,
            stream=question.version.stream,
            plan=move.plan,
            objective=self.objective,
            decided_s=now - question.arrived,
            predicted_first_token_s=first - question.arrived,
            predicted_finished_s=now - question.arrived + move.plan.chosen.finished_s,
        )
        self.planned(question.plan)

    def ingest_engine(self, stream: str) -> str:
        """The engine that is to compute the frames of ``stream`` from now on."""
        usable = [slot.config.name for slot in self._slots.ready]
        state = self._reader.state(usable, self._clock())
        return self.policy.ingest_engine(state, stream, self._learner.model())

    def take_over(self, engine: str) -> str:
        """The stream whose frames ``engine`` is to go on with now that it has computed its own;
        empty: none."""
        usable = [slot.config.name for slot in self._slots.ready]
        waiting = {q.version.stream for q in self.questions.values() if q.is_open}
        if all(self._streams[name].ingest_engine == engine for name in waiting):
            return ""
        try:
            state, questions = self._reader.backlog(usable, self._clock())
            return self.policy.take_over(state, questions, engine, self._learner.model())
        except Exception:  # every frame is being computed where it is
            _logger.exception("it could not be planned whether engine %s takes over", engine)
            return ""

    def is_idle(self, engine: str) -> bool:
        """Whether no question is on an engine, on its way to it, or without a place yet."""
        questions = self.questions.values()
        return not any(
            not q.engine or engine in (q.engine, q.moving_to, q.next_engine) for q in questions
        )

    # ---------------------------------------------------------------- what happens
    def frame_encoded(self, event: FrameEncoded) -> None:
        if not event.cache_hit:
            seconds, rows = event.encode_s, event.embeddings.shape[0]
            step = StepRecord(
                Activity.ENCODE, event.started, seconds, rows, 1, 0, label=event.stream
            )
            self._encoded.append(step)

    def question_accepted(self, question: Question) -> None:
        self._estimates[question.version.stream].asked(question)

    def question_ended(self, question: Question, reason: FinishReason) -> None:
        if reason in _COMPLETE:
            self._estimates[question.version.stream].answered(question)
        if question.plan is None:
            return
        first, arrived = question.first_token, question.arrived
        record = replace(
            question.plan,
            actual_first_token_s=None if first is None else first - arrived,
            actual_finished_s=self._clock() - arrived,
            finish_reason=reason.value,
        )
        # What went on elsewhere or ended early was not what had been foreseen.
        stayed = not question.failovers and not question.was_moved
        if reason in _COMPLETE and first is not None and stayed:
            waited = record.decided_s
            self._first_token_errors.append(
                factor_error(record.predicted_first_token_s - waited, first - arrived - waited)
            )
            assert record.actual_finished_s is not None
            self._finished_errors.append(
                factor_error(
                    record.predicted_finished_s - waited, record.actual_finished_s - waited
                )
            )
        self.ended(record)

    def observe(self) -> None:
        """Collect what engines and encoders have done, if it is time."""
        now = self._clock()
        if now - self._observed_at < OBSERVE_PERIOD_S:
            return
        self._observed_at = now
        self.collect()

    def collect(self) -> None:
        encoded, self._encoded = self._encoded, []
        records = {ENCODER: encoded}
        for slot in self._slots.ready:
            records[slot.config.name] = self._slots.engine(slot.config.name).take_steps()
        for name, steps in records.items():
            if steps:
                self.stepped(name, steps)
        try:
            self._learner.observe(records)
        except Exception:  # plans can be made with the costs as they were
            _logger.exception("costs could not be corrected by what steps have taken")

    # ---------------------------------------------------------------- readings
    def status(self) -> PlanningStatus:
        now = self._clock()
        usable = [slot.config.name for slot in self._slots.ready]
        load = self.policy.load(self._reader.state(usable, now), self._learner.model())
        return PlanningStatus(
            policy=self.policy.name,
            objective=self.objective,
            sustained_load=load.sustained,
            engines=tuple(
                EngineRouting(
                    engine=name,
                    share=load.shares.get(name, 0.0),
                    routed=self._routing.of(name),
                    utilisation=load.utilisation.get(name, 0.0),
                )
                for name in usable
            ),
            question_rate_hz=sum(e.questions.value(now) for e in self._estimates.values()),
            decisions=self._decisions,
            decision_mean_us=1e6 * self._decision_s / max(1, self._decisions),
            decision_max_us=1e6 * self._longest_s,
            first_token=_prediction_error(self._first_token_errors),
            finished=_prediction_error(self._finished_errors),
            costs=tuple(
                CostError(name, activity, error.n, error.error)
                for (name, activity), error in self._learner.errors().items()
            ),
        )


def _path(question: Question, plan: Plan) -> Path:
    """How the engine is told to get the history.

    Replay that is forced on the planner, because nothing can be imported, leaves the choice to
    what is found when it is carried out: an equal prefix may be there to be forked.
    """
    if question.path is not Path.ANY:
        return question.path
    chosen = plan.chosen
    if chosen.path == "import":
        return Path.IMPORT
    importable = any(
        other.path == "import" and other.prefill_engine == chosen.prefill_engine
        for other in plan.alternatives
        if not other.blocked
    )
    return Path.REPLAY if chosen.path == "replay" and importable else Path.ANY


def _prediction_error(errors: deque[float]) -> PredictionError:
    return PredictionError(len(errors), statistics.median(errors)) if errors else PredictionError()
