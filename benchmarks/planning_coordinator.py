"""Time of the coordinator's whole decision: gathering the state, planning, keeping the plan."""

from __future__ import annotations

import time

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import (
    ENCODER,
    CostModel,
    EngineCosts,
    MoveCost,
    RowCost,
    even_batches,
)
from edge_vlm_ros.runtime.coordinator import Coordinator
from edge_vlm_ros.runtime.question import Question
from edge_vlm_ros.simulation.profile import EngineFacts, ModelFacts, Profile
from edge_vlm_ros.simulation.settings import Limits
from edge_vlm_ros.simulation.simulator import Simulation
from edge_vlm_ros.simulation.workload import Asked, Frame, Workload

STREAMS = 8
FRAMES = 12
_MOVE = MoveCost(4e-4, 4e-10)


def measure_decisions(engines: int, queued: int, rounds: int) -> tuple[float, ...]:
    """Microseconds of Planner.place for one more question, with ``queued`` answers under way on
    simulated engines behind a real coordinator; every engine has a place left."""
    coordinator, question = _loaded(engines, queued)
    version = question.version
    epoch = coordinator.streams[version.stream].history.epoch(version.epoch)
    usable = coordinator.slots.names
    times = []
    for _ in range(rounds):
        question.engine = question.prefill_engine = ""
        began = time.thread_time()
        placed = coordinator.planner.place(question, epoch, usable)
        times.append(1e6 * (time.thread_time() - began))
        assert placed
    return tuple(times)


def _loaded(engines: int, queued: int) -> tuple[Coordinator, Question]:
    """A coordinator in the middle of its work, and the question that came last."""
    names = tuple(f"engine{i}" for i in range(engines))
    streams = tuple(f"stream{i}" for i in range(STREAMS))
    frames = [Frame(0.0, stream) for stream in streams for _ in range(FRAMES)]
    # Asked when all frames are computed; none of the long answers ends before all are placed.
    asked = [
        Asked(100.0 + 1e-3 * k, streams[k % STREAMS], k, 20, 10_000, 10_000,
              engine=names[k % engines])
        for k in range(queued + 1)
    ]  # fmt: skip
    limits = Limits(
        max_frames=2 * FRAMES,
        keep_frames=FRAMES,
        max_pending_frames=FRAMES,
        max_pending_questions=queued + 2,
    )
    workload = Workload(streams, (*frames, *asked), 101.0)
    simulation = Simulation(_profile(names, queued), workload, "sdep", limits)
    coordinator = simulation.run_until(110.0)
    questions = list(coordinator.answering.questions.values())
    assert len(questions) == queued + 1
    last = questions[-1]
    del coordinator.answering.questions[last.answer_id]
    last.options = type(last.options)(max_tokens=last.max_tokens)
    last.token_ids.clear()
    return coordinator, last


def _profile(names: tuple[str, ...], queued: int) -> Profile:
    """Engines of different speeds that slow each other down."""
    places = queued // len(names) + 2
    slowdowns = {
        ((who, activity), (beside, other)): 1.1
        for who in names
        for beside in (*names, ENCODER)
        if who != beside
        for activity in Activity
        for other in Activity
    }
    costs = {
        name: EngineCosts(
            RowCost(2e-3 * speed, 4e-4 * speed, 1e-7 * speed),
            even_batches(1e-2 * speed, 1.5e-3 * speed, 1e-6 * speed),
            _MOVE,
            _MOVE,
        )
        for speed, name in enumerate(names, start=1)
    }
    return Profile(
        "planning",
        "engines for the measurement of decisions",
        ModelFacts("none", 49, 2, 10, 6000, 32_000),
        tuple(EngineFacts(name, "cpu", places, 64, True) for name in names),
        "npu",
        CostModel(costs, {ENCODER: 0.03}, slowdowns),
    )
