"""Random schedules of frames, questions, moves, evictions and cancels over two real engines.

Whatever path an answer takes, it is that of the same question asked alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from helpers import PATIENCE_S, Clip, clip, demo_config, engine_of, eventually, settle
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from serial_reference import Committed, Seen, replay

from edge_vlm_ros.planning import policies
from edge_vlm_ros.planning.plan import Objective
from edge_vlm_ros.planning.state import PlanningState, QuestionState
from edge_vlm_ros.planning.takeover import _can_take_over
from edge_vlm_ros.runtime import (
    Answer,
    AskOptions,
    EngineConfig,
    FinishReason,
    HistoryConfig,
    PlacementConfig,
    QuestionLimits,
    QuestionRejected,
    Runtime,
    SamplingParameters,
    placing,
)

N_SCHEDULES = 50
STREAMS = ("table", "shelf", "door")
ENGINES = ("cpu", "far")
POLICIES = ("sdep", "single:cpu", "batched:far", "idle_first", "isolated", "round_robin")
MAX_FRAMES = 7

streams = st.sampled_from(STREAMS)
engines = st.sampled_from(ENGINES)
objectives = st.sampled_from(["completion", "first_token"])
samplings = st.sampled_from(
    [SamplingParameters(), SamplingParameters(temperature=1.2, top_k=20, seed=3)]
)


def tight_config() -> Any:
    """Cells for less than two of the three histories on each engine, little host memory."""
    return demo_config(
        *STREAMS,
        history=HistoryConfig(max_frames=MAX_FRAMES, max_turns=6),
        engines=(
            EngineConfig(name="cpu", n_threads=1, n_ctx=1200, transfer_tokens=64),
            EngineConfig(name="far", device="rpc", n_threads=1, n_ctx=1200, transfer_tokens=100),
        ),
        questions=QuestionLimits(
            max_pending=6, max_question_tokens=40, default_max_tokens=24, max_answer_tokens=24
        ),
        placement=PlacementConfig(snapshot_entries=8, snapshot_bytes=1 << 20, prefix_entries=40),
    )


class Shared:
    """One runtime for all schedules (each begins with new histories), and one that is alone."""

    runtime: Runtime
    alone: Runtime
    commits: Committed


def take_over_what_can_be(
    state: PlanningState, questions: Sequence[QuestionState], engine: str, *_: Any
) -> str:
    """Whatever it is worth."""
    asked, this = {question.stream for question in questions}, state.engine(engine)
    found = [s.name for s in state.streams if s.name in asked and _can_take_over(this, s, state)]
    return "" if this.ingest_tokens or not found else found[0]


@pytest.fixture(scope="module")
def shared(alone: Runtime) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as eager:
        eager.setattr(placing, "FRESH_S", 0.0)
        eager.setattr(policies, "stream_to_take_over", take_over_what_can_be)
        yield from _share(alone)


def _share(alone: Runtime) -> Iterator[None]:
    Shared.alone = alone
    Shared.commits = Committed()
    Shared.runtime = Runtime(tight_config(), Shared.commits)
    Shared.runtime.load()
    Shared.runtime.activate()
    yield
    Shared.runtime.close()


class Schedule(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runtime = Shared.runtime
        self.asked: list[tuple[Answer, AskOptions, int]] = []
        self.seen: list[tuple[str, int, Seen, int]] = []
        self.shown = dict.fromkeys(STREAMS, 0)
        self.clips = dict.fromkeys(STREAMS, 1)
        self.turns = dict.fromkeys(STREAMS, 0)

    @initialize(seeds=st.tuples(*[st.integers(1, 6)] * 3))
    def begin(self, seeds: tuple[int, ...]) -> None:
        Shared.commits.results.clear()
        for stream, seed in zip(STREAMS, seeds, strict=True):
            self._forget(stream, seed)
            self.runtime.move_ingestion(stream, ENGINES[0])
            self.frame(stream)

    @rule(stream=streams)
    def frame(self, stream: str) -> None:
        if self.shown[stream] < MAX_FRAMES:  # beyond that the history would be rebuilt
            index = self.shown[stream]
            self.shown[stream] += 1
            picture = clip(self.clips[stream]).frames(index + 1)[-1]
            self.runtime.add_frame(stream, picture, index)

    @rule(
        stream=streams,
        question=st.integers(0, 10**6),
        sampling=samplings,
        engine=st.sampled_from(["", *ENGINES]),
        prefill_engine=st.sampled_from(["", *ENGINES]),
        path=st.sampled_from(["", "", "import", "replay"]),
        commit=st.booleans(),
    )
    def ask(
        self,
        stream: str,
        question: int,
        sampling: SamplingParameters,
        engine: str,
        prefill_engine: str,
        path: str,
        commit: bool,
    ) -> None:
        if not self.shown[stream]:
            return
        options = AskOptions(
            max_tokens=24,
            sampling=sampling,
            engine=engine,
            prefill_engine=prefill_engine if engine else "",
            path=path,
            commit=commit and self.turns[stream] < 4,
        )
        rng = random.Random(question)
        text = clip(self.clips[stream]).question(0, self.shown[stream], rng).text
        try:
            answer = self.runtime.ask(stream, text, options)
        except QuestionRejected as rejection:
            assert rejection.reason == "queue_full"
            return
        self.turns[stream] += options.commit
        epoch = self.runtime._loaded().streams[stream].history.current.number
        self.asked.append((answer, options, epoch))

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 10**6))
    def cancel(self, which: int) -> None:
        self.asked[which % len(self.asked)][0].cancel()

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 10**6))
    def wait(self, which: int) -> None:
        self.asked[which % len(self.asked)][0].result(PATIENCE_S)

    @rule(stream=streams, engine=engines)
    def move(self, stream: str, engine: str) -> None:
        self.runtime.move_ingestion(stream, engine)

    @rule(stream=streams)
    def free(self, stream: str) -> None:
        """The policy moves ingestion from now on."""
        self.runtime.move_ingestion(stream, "")

    @rule(
        policy=st.sampled_from(POLICIES), objective=st.sampled_from(["completion", "first_token"])
    )
    def plan_otherwise(self, policy: str, objective: Objective) -> None:
        self.runtime.set_policy(policy, objective)

    @rule(stream=streams, engine=engines)
    def evict(self, stream: str, engine: str) -> None:
        self.runtime.evict(stream, engine)

    @rule(stream=streams, seed=st.integers(1, 6))
    def reset(self, stream: str, seed: int) -> None:
        self._forget(stream, seed)

    @invariant()
    def budgets_hold(self) -> None:
        placement = self.runtime.placement_status()
        assert placement.snapshot_bytes <= placement.max_snapshot_bytes
        assert placement.snapshot_entries <= placement.max_snapshot_entries
        assert placement.prefix_entries <= placement.max_prefix_entries
        for reading in self.runtime.engine_status():
            status = reading.status
            assert status.cells_used + status.cells_reserved <= status.cells
        questions = self.runtime.question_status()
        assert questions.pending <= questions.max_pending

    def teardown(self) -> None:
        results = {answer.answer_id: answer.result(PATIENCE_S) for answer, _, _ in self.asked}
        for stream in STREAMS:
            self._forget(stream, 1)
        for result in results.values():
            assert not result.error, result
            assert result.finish_reason is not FinishReason.ERROR
        for stream, epoch, seen, seed in self.seen:
            for answer, options, asked_epoch in self.asked:
                if (answer.stream, asked_epoch) == (stream, epoch):
                    seen.results.append(results[answer.answer_id])
                    seen.options[answer.answer_id] = options
            ids = {result.answer_id for result in seen.results}
            seen.committed = [r for r in Shared.commits.results if r.answer_id in ids]
            if seen.results:
                self._compare(seen, clip(seed))
        self._nothing_is_left()

    def _compare(self, seen: Seen, shown: Clip) -> None:
        replay(Shared.alone, seen, lambda frame: shown.frames(frame.stamp_ns + 1)[-1])

    def _forget(self, stream: str, seed: int) -> None:
        """Begin a new history; the old one is kept for comparison when its answers are there."""
        history = self.runtime._loaded().streams[stream].history
        for answer, _, epoch in self.asked:
            if answer.stream == stream and epoch == history.current.number:
                answer.result(PATIENCE_S)  # commits go into the history they are of
        if self.shown[stream]:
            items = history.current.items
            self.seen.append((stream, history.current.number, Seen(items), self.clips[stream]))
        self.runtime.reset(stream)
        self.shown[stream] = self.turns[stream] = 0
        self.clips[stream] = seed

    def _nothing_is_left(self) -> None:
        runtime = self.runtime
        eventually(lambda: runtime.question_status().pending == 0)
        questions = runtime.question_status()
        assert questions.accepted == sum(questions.finished.values())
        records = list(runtime._loaded().trunks.table)
        assert not [record for record in records if record.reserved]
        for name in ENGINES:
            engine = engine_of(runtime, name)
            n_trunks = len([r for r in records if r.engine == name and r.submitted.n])
            eventually(lambda e=engine, n=n_trunks: e.status().trunks == n, f"{n_trunks} trunks")
            status = engine.status()
            assert (status.running_answers, status.cells_reserved) == (0, 0)
        assert runtime.vision_status().cache.pinned_entries == 0


def test_every_schedule_equals_its_serial_reference(shared: None) -> None:
    run_state_machine_as_test(
        Schedule,
        settings=settings(
            max_examples=N_SCHEDULES,
            stateful_step_count=24,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),  # a schedule is not the same again
            suppress_health_check=list(HealthCheck),
        ),
    )
    settle(Shared.runtime)
    status = Shared.runtime.placement_status()
    assert min(status.paths.values()) > 0, f"a path was never taken: {status.paths}"
    assert status.handoffs and status.evicted_trunks and status.delta_imports
    assert status.failed_imports == 0
