"""Runs the coordinator, placement and planning of the runtime on simulated engines."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from itertools import permutations

import numpy as np

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.protocol import EventSink, StartAnswer
from edge_vlm_ros.planning.costs import ENCODER
from edge_vlm_ros.runtime.answer import AskOptions
from edge_vlm_ros.runtime.assembly import wire
from edge_vlm_ros.runtime.config import RuntimeConfig
from edge_vlm_ros.runtime.coordinator import Coordinator
from edge_vlm_ros.runtime.engine_slots import EngineSlots
from edge_vlm_ros.runtime.frame_segments import WrapperRows
from edge_vlm_ros.runtime.messages import Call, FrameArrived
from edge_vlm_ros.runtime.prompt import PromptTemplate
from edge_vlm_ros.runtime.sizing import (
    TRUNKS_PER_STREAM,
    answer_cells,
    context_cells,
    history_limits,
)
from edge_vlm_ros.vision.embedding_cache import EmbeddingCache

from .engine import EngineShape, SimulatedEngine
from .feeding import Feeder, OpenFeeder, SerialFeeder
from .machine import Machine
from .observer import Observer, question_text
from .profile import Profile
from .result import SimulationResult
from .settings import (
    DEFAULT_LIMITS,
    FIRST_QUESTION_TOKEN,
    Limits,
    prompt_template,
    runtime_config,
    tokenize,
)
from .vision import SimulatedVision
from .workload import Asked, Frame, Workload

SERIAL = "serial"
"""``serial:ENGINE``: like ``single:ENGINE``, but nothing overlaps, not even encoding."""

_ROOT = bytes(32)
_LEAST_STEP_S = 1e-9
_PROCESSORS = ("cpu", "rpc")
"""Devices that are taken to compute the same bits as each other."""


class SimulationError(RuntimeError):
    """The runtime does not get any further."""


def simulate(
    profile: Profile, workload: Workload, policy: str, limits: Limits = DEFAULT_LIMITS
) -> SimulationResult:
    """Let a workload pass over a simulated machine until everything is answered.

    ``policy`` is one of planning/policies.py or ``serial:ENGINE``. Raises ValueError for an
    unknown policy, ConfigError for limits that the model does not allow, SimulationError when
    questions are left without an end.
    """
    return Simulation(profile, workload, policy, limits).run()


class Simulation:
    """One workload on its way over one machine; see ``simulate``."""

    def __init__(self, profile: Profile, workload: Workload, policy: str, limits: Limits) -> None:
        self._profile, self._workload, self._policy = profile, workload, policy
        self._machine = Machine(profile.costs)
        self._questions = {question.number: question for question in workload.questions}
        self._engines: dict[str, SimulatedEngine] = {}
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        kind, _, engine = policy.partition(":")
        self._is_serial = kind == SERIAL
        config = runtime_config(
            profile, workload, f"single:{engine}" if self._is_serial else policy, limits
        )
        self._observer = Observer(self._machine.clock, self._questions)
        cache = EmbeddingCache(config.vision.cache_entries, config.vision.cache_bytes)
        self._vision = SimulatedVision(
            self._machine, ENCODER, profile.model.frame_tokens, cache, self._inbox.put
        )
        self._coordinator = self._wire(config, cache)
        self._observer.streams = self._coordinator.streams
        self._feeder = self._make_feeder()

    def _wire(self, config: RuntimeConfig, cache: EmbeddingCache) -> Coordinator:
        prompt = prompt_template(self._profile.model)
        around = prompt.frame_shape.prefix, prompt.frame_shape.suffix
        placement = config.placement
        slots = EngineSlots(
            config.engines,
            lambda engine, emit: self._make(config, prompt, engine, emit),
            self._inbox.put,
            placement.retry_s,
            placement.max_retry_s,
        )
        slots.start_all()
        for one, other in permutations(slots, 2):
            if all(slot.config.device.startswith(_PROCESSORS) for slot in (one, other)):
                other.equal.add(one.config.name)
        return wire(
            config,
            inbox=self._inbox,
            slots=slots,
            vision=self._vision,
            cache=cache,
            prompt=prompt,
            tokenize=tokenize,
            wrapper=WrapperRows(*(np.zeros((len(t), 1), np.float32) for t in around)),
            root=_ROOT,
            costs=self._profile.costs,
            listener=self._observer,
            clock=self._machine.clock,
        )

    def _make(
        self,
        config: RuntimeConfig,
        prompt: PromptTemplate,
        engine: EngineConfig,
        emit: EventSink,
    ) -> SimulatedEngine:
        limits = [
            history_limits(stream.history, config.profile, prompt, config.questions)
            for stream in config.streams
        ]
        max_pending = config.questions.max_pending
        facts = next(facts for facts in self._profile.engines if facts.name == engine.name)
        shape = EngineShape(
            n_ctx=context_cells(engine, limits, config.questions),
            cell_bytes=self._profile.model.cell_bytes,
            batching=facts.batching,
            max_trunks=TRUNKS_PER_STREAM * len(limits) + max_pending,
            max_branches=max_pending,
            max_exports=len(limits) + max_pending,
            answer_cells=answer_cells(config.questions),
        )
        made = SimulatedEngine(self._machine, engine, shape, self._answer_tokens, emit)
        self._engines[engine.name] = made
        return made

    def _make_feeder(self) -> Feeder:
        if self._is_serial:
            return SerialFeeder(self._machine, self._workload, self._deliver, self._is_done)
        return OpenFeeder(self._machine, self._workload, self._deliver)

    # ---------------------------------------------------------------- running
    def run(self) -> SimulationResult:
        self._start()
        while self._goes_on():
            self._advance()
            self._settle()
        return self._result()

    def run_until(self, seconds: float) -> Coordinator:
        """Up to some moment; returns the coordinator in the middle of its work."""
        self._start()
        while self._goes_on() and self._machine.clock() < seconds:
            self._advance()
            self._settle()
        return self._coordinator

    def _start(self) -> None:
        self._coordinator.active = True
        self._coordinator.begin()
        self._feeder.begin()
        self._settle()

    def _goes_on(self) -> bool:
        """Whether something is still to come. What only waits for time to pass, while nothing is
        left to be done, does not count."""
        events, questions = self._machine.events, self._coordinator.answering.questions
        return events.next_time is not None or bool(questions) or not self._feeder.exhausted

    def _advance(self) -> None:
        """Go to the next moment at which something happens."""
        machine, patience = self._machine, self._coordinator.patience()
        at, now = machine.events.next_time, machine.clock()
        wake = None if patience is None else now + max(patience, _LEAST_STEP_S)
        if at is None and wake is None:
            raise SimulationError(self._stuck())
        if at is None or (wake is not None and wake < at):
            assert wake is not None
            machine.clock.advance_to(wake)
            self._coordinator.step(None)
            return
        machine.clock.advance_to(at)
        while machine.events.next_time == at:
            machine.events.pop()()

    def _settle(self) -> None:
        """Let the coordinator hear everything that was said."""
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                break
            self._coordinator.step(message)
        self._feeder.settled()

    def _stuck(self) -> str:
        waiting = [
            f"{question.answer_id} ({question.state.value}, engine {question.engine or 'none'})"
            for question in self._coordinator.answering.questions.values()
        ]
        return (
            f"policy {self._policy}: nothing happens any more at {self._machine.clock():.3f} s, "
            f"but answers are missing: {', '.join(waiting)}"
        )

    # ---------------------------------------------------------------- workload
    def _deliver(self, item: Frame | Asked) -> None:
        now = self._machine.clock()
        if isinstance(item, Frame):
            pixels = np.zeros((1, 1, 3), np.uint8)
            stamp = round(item.at * 1e9)
            self._inbox.put(FrameArrived(item.stream, pixels, stamp, now))
            return
        text = question_text(item.number, item.prompt_tokens)
        options = AskOptions(
            max_tokens=item.max_tokens,
            engine=item.engine,
            prefill_engine=item.prefill_engine,
            path=item.path,
        )
        self._inbox.put(
            Call(
                lambda: self._coordinator.ask(item.stream, text, options, item.at),
                Future(),
            )
        )

    def _is_done(self, item: Frame | Asked) -> bool:
        if isinstance(item, Asked):
            ended = self._observer.finished | set(self._observer.rejected)
            return item.number in ended
        status = self._coordinator.streams[item.stream].status(self._machine.clock())
        return status.pending_frames == 0

    def _answer_tokens(self, command: StartAnswer) -> int:
        number = command.prompt[0] - FIRST_QUESTION_TOKEN
        return self._questions[number].answer_tokens

    # ---------------------------------------------------------------- result
    def _result(self) -> SimulationResult:
        observer = self._observer
        timelines = {name: engine.steps.records for name, engine in self._engines.items()}
        return SimulationResult(
            policy=self._policy,
            answers=tuple(observer.answers),
            rejected=tuple(observer.rejected.values()),
            frames=len(self._workload.frames),
            dropped_frames=observer.dropped_frames,
            ingestion_lag_s=tuple(observer.lags),
            timelines={**timelines, self._profile.encoder: self._vision.records},
            duration_s=self._workload.duration_s,
            end_s=observer.end_s,
        )
