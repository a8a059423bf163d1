"""A policy that moves running answers when a test says so, and what must be left of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from helpers import (
    PATIENCE_S,
    Start,
    changes,
    engine_of,
    eventually,
    held,
    hold_decoding,
    known_cells,
    settle,
    show,
)
from robot import AT_ONCE, N_FRAMES, QUESTION, Heard, Robot, assert_goes_on, raising
from two_engines import TWO, ask

from edge_vlm_ros.planning.plan import Alternative, Plan
from edge_vlm_ros.planning.rebalancing import Move, RunningAnswer
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AnswerState,
    AskOptions,
    FinishReason,
    Runtime,
)
from edge_vlm_ros.runtime.question import Question


class Mover:
    """The policy of a runtime, and moves from engine to engine as ``targets`` says."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.targets: dict[str, str] = {}
        self.movable: list[int] = []
        """Answers that might have moved when that was asked last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def may_move(self, running: Any, costs: Any) -> bool:
        return True

    def move(self, state: Any, running: Sequence[RunningAnswer], costs: Any) -> Move | None:
        self.movable = [answer.answer_id for answer in running]
        for answer in running:
            target = self.targets.get(answer.engine)
            if target is not None:
                way = Alternative("import", answer.engine, target, 0.0, 0.0, 1.0)
                return Move(answer.answer_id, target, 1.0, Plan("stub", way, (way,), "it is said"))
        return None


def mover(runtime: Runtime) -> Mover:
    """The stub of a runtime; made when it is asked for the first time."""
    planner = runtime._loaded().planner
    if not isinstance(planner.policy, Mover):
        planner.policy = Mover(planner.policy)
    return planner.policy


def question_of(runtime: Runtime, answer: Answer) -> Question:
    return runtime._loaded().answering.questions[answer.answer_id]


def rebalance(runtime: Runtime, **targets: str) -> list[int]:
    """Have it looked at once which answer should move; returns those that might."""
    stub = mover(runtime)
    stub.movable, stub.targets = [], targets
    runtime._on_loop(runtime._loaded().answering._rebalance)
    stub.targets = {}
    return stub.movable


def move(runtime: Runtime, answer: Answer, to: str = "second") -> Question:
    """Have an answer that is being decoded on ``cpu`` move."""
    question = question_of(runtime, answer)
    eventually(lambda: question.state is AnswerState.DECODING, "its first token is told")
    assert answer.answer_id in rebalance(runtime, cpu=to)
    return question


def assert_nothing_is_kept(runtime: Runtime) -> None:
    """No question, no room, no want, no cell is left of what has been answered."""
    settle(runtime)
    coordinator = runtime._loaded()
    trunks, names = coordinator.trunks, [slot.config.name for slot in coordinator.slots.ready]

    def is_clean() -> bool:
        statuses = [
            engine_of(runtime, slot.config.name).status() for slot in coordinator.slots.ready
        ]
        return all(
            (s.running_answers, s.waiting_answers, s.cells_reserved) == (0, 0, 0) for s in statuses
        )

    eventually(is_clean, "no answer and no reserve is left on any engine")
    assert not coordinator.answering.questions
    assert not [record for record in trunks.table if record.reserved]
    assert not any(trunks._budget._waiting.values())
    for stream in coordinator.streams.values():
        assert not stream.history._wanted and not stream.history._readers
        assert [epoch.number for epoch in stream.history.epochs] == [stream.history.current.number]
    for name in names:
        cells = known_cells(runtime, name)
        engine = engine_of(runtime, name)
        eventually(lambda c=cells, e=engine: e.status().cells_used in c, "only trunks take cells")


def begin(runtime: Runtime, **options: Any) -> Answer:
    options.setdefault("max_tokens", 32)
    return runtime.ask("table", QUESTION, AskOptions(**options))


def undisturbed(runtime: Runtime, **options: Any) -> AnswerResult:
    """The answer as ``cpu`` alone gives it; long enough to be moved in the middle."""
    expected = begin(runtime, **options).result(PATIENCE_S)
    assert expected.metrics.engine == expected.metrics.prefill_engine == "cpu"
    assert len(expected.token_ids) > 12
    return expected


def hold_import(runtime: Runtime, engine: str = "second") -> Any:
    return held(engine_of(runtime, engine)._context, "import_range")


def ready_on_both(runtime: Runtime) -> None:
    """``second`` holds the history, too: an answer that is to move is told to leave at once."""
    begin(runtime, engine="second", max_tokens=1).result(PATIENCE_S)


@contextmanager
def half_moved(runtime: Runtime, **options: Any) -> Iterator[tuple[Answer, Any]]:
    """An answer that moves; the other engine is held before it imports the history, and the first
    one in the middle of the answer. Gives the answer and the gate of the import."""
    with hold_decoding(runtime, after_steps=6) as middle, hold_import(runtime) as gate:
        with hold_decoding(runtime, after_steps=2) as first:
            answer = begin(runtime, **options)
            first.wait_until_reached()
            question = move(runtime, answer)
        gate.wait_until_reached()
        middle.wait_until_reached()
        assert question.moving_to == "second" and not question.is_leaving
        yield answer, gate
        gate.open()
        middle.open()


@contextmanager
def leaving(runtime: Runtime, **options: Any) -> Iterator[Answer]:
    """An answer that was told to leave, which its engine does after the step that is held."""
    ready_on_both(runtime)
    with hold_decoding(runtime, after_steps=4) as gate:
        answer = begin(runtime, **options)
        gate.wait_until_reached()
        question = move(runtime, answer)
        assert question.is_leaving
        yield answer
        gate.open()


def assert_stayed(runtime: Runtime, answer: Answer, expected: AnswerResult) -> None:
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 0)
    assert runtime.placement_status().handoffs == 0
    assert_works(runtime, undisturbed(runtime))


def assert_works(runtime: Runtime, greedy: AnswerResult) -> None:
    """Nothing is left of what happened; both engines answer, and answers move again."""
    assert_nothing_is_kept(runtime)
    before = runtime.placement_status().handoffs
    assert ask(runtime, engine="second", max_tokens=32).token_ids == greedy.token_ids
    with hold_decoding(runtime, after_steps=2) as gate:
        answer = begin(runtime)
        gate.wait_until_reached()
        move(runtime, answer)
    result = answer.result(PATIENCE_S)
    assert (result.token_ids, result.text) == (greedy.token_ids, greedy.text)
    assert result.metrics.engine == "second"
    assert runtime.placement_status().handoffs == before + 1
    assert_nothing_is_kept(runtime)


def end_now(runtime: Runtime, answer: Answer, how: str) -> FinishReason:
    """The asker cancels, or the deadline comes."""
    question = question_of(runtime, answer)
    if how == "cancel":
        answer.cancel()
        eventually(lambda: question.ending is not None, "it is to be ended")
        return FinishReason.CANCELLED
    answering = runtime._loaded().answering
    assert question.deadline is not None
    due = question.deadline + 0.001
    runtime._on_loop(lambda: answering.end_overdue(due))
    return FinishReason.DEADLINE


def assert_ended(answer: Answer, expected: AnswerResult, reason: FinishReason) -> None:
    result = answer.result(PATIENCE_S)
    assert (result.finish_reason, result.error) == (reason, "")
    n = len(result.token_ids)
    assert 1 <= n < len(expected.token_ids)
    assert result.token_ids == expected.token_ids[:n] and expected.text.startswith(result.text)


def two_that_come_back(start: Start) -> Robot:
    """Two engines of this process; either comes back soon after it was lost."""
    heard = Heard()
    made = Robot(start(engines=TWO, placement=AT_ONCE, listener=heard), heard)
    show(made.runtime, "table", changes(1)[0].clip.frames(N_FRAMES))
    settle(made.runtime)
    return made


def lose(made: Robot, engine: str) -> None:
    """Another question makes the engine raise what nobody expects."""
    with raising(made.runtime, engine, lambda *_: True):
        lost = made.runtime.ask("table", QUESTION, AskOptions(engine=engine, max_tokens=1))
        eventually(lambda: made.heard.failed, f"{engine} is lost")
        lost.cancel()


def back_again(made: Robot, engine: str, greedy: AnswerResult) -> None:
    eventually(lambda: made.health(engine) == "ready", f"{engine} works again")
    assert_works(made.runtime, greedy)
    made.assert_each_ended_once()
