"""The history of a running answer that moves: refused, without room, replaced, counted."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    changes,
    clip,
    engine_of,
    eventually,
    held,
    hold_decoding,
    settle,
    show,
)
from moves import (
    assert_nothing_is_kept,
    assert_works,
    back_again,
    begin,
    half_moved,
    leaving,
    lose,
    move,
    mover,
    question_of,
    ready_on_both,
    rebalance,
    two_that_come_back,
    undisturbed,
)
from robot import (
    CPU,
    N_FRAMES,
    QUESTION,
    SAMPLED,
    Heard,
    Robot,
    assert_goes_on,
)
from two_engines import TWO, ask

from edge_vlm_ros.engines.errors import ComputeError, ImportRefusedError
from edge_vlm_ros.planning.plan import Alternative, Plan
from edge_vlm_ros.runtime import (
    AskOptions,
    EngineConfig,
    FinishReason,
    HistoryConfig,
    QuestionLimits,
    Runtime,
)


@pytest.fixture
def robot(start: Start) -> Robot:
    return two_that_come_back(start)


# -------------------------------------------------------------------------------- no history there
def refuse_import(*_: Any) -> None:
    raise ImportRefusedError("not today")


def test_a_history_that_is_refused_is_replayed(
    two: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy, expected = undisturbed(two), undisturbed(two, sampling=SAMPLED)
    context = engine_of(two, "second")._context
    with monkeypatch.context() as broken:
        broken.setattr(context, "import_range", refuse_import)
        with hold_decoding(two, after_steps=6) as middle:
            with hold_decoding(two, after_steps=2) as first:
                answer = begin(two, sampling=SAMPLED)
                first.wait_until_reached()
                question = move(two, answer)
            middle.wait_until_reached()
            eventually(lambda: question.is_leaving, "the history is there")
    result = assert_goes_on(answer, expected)
    metrics = result.metrics
    assert (metrics.engine, metrics.path, metrics.failovers) == ("second", "replay", 0)
    assert metrics.replayed_tokens == result.context.tokens
    assert_works(two, greedy)


def test_a_history_that_cannot_be_computed_there_either(
    two: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer stays, and is not tried there again."""
    greedy, expected = undisturbed(two), undisturbed(two, sampling=SAMPLED)
    context = engine_of(two, "second")._context

    def refuse(*_: Any) -> None:
        raise ComputeError("out of luck")

    with monkeypatch.context() as broken:
        broken.setattr(context, "import_range", refuse_import)
        broken.setattr(context, "decode_embeddings", refuse)
        with hold_decoding(two, after_steps=6) as middle:
            with hold_decoding(two, after_steps=2) as first:
                answer = begin(two, sampling=SAMPLED)
                first.wait_until_reached()
                question = move(two, answer)
            middle.wait_until_reached()
            eventually(lambda: not question.moving_to, "it stays")
            assert rebalance(two, cpu="second") == []
            assert not question.wants_kv
    assert_goes_on(answer, expected)
    assert two.placement_status().handoffs == 0
    two.evict("table", "second")  # forgets that imports were refused
    assert_works(two, greedy)


def test_the_trouble_of_another_stream_does_not_keep_it(
    two: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(two)

    def refuse(*_: Any) -> None:
        raise ComputeError("out of luck")

    show(two, "shelf", clip(2).frames(2))
    settle(two)
    with half_moved(two) as (answer, gate):
        question = question_of(two, answer)
        monkeypatch.setattr(engine_of(two, "second")._context, "decode_embeddings", refuse)
        other = two.ask("shelf", QUESTION, AskOptions(engine="second", path="replay"))
        gate.open()
        eventually(lambda: question.is_leaving, "its own history is there")
        eventually(lambda: question_of(two, other).failed_on == {"second"}, "the other is not")
        assert question.moving_to == "second" and question.is_leaving
        mover(two).targets = {}
    assert assert_goes_on(answer, expected).metrics.engine == "second"
    assert not other.result(PATIENCE_S).error
    monkeypatch.undo()
    assert_works(two, expected)


def test_without_cells_it_goes_on_where_it_is(start: Start) -> None:
    """Nobody waits behind it for room."""
    limits = QuestionLimits(max_question_tokens=32, default_max_tokens=48, max_answer_tokens=48)
    cells = 3 + 6 * 52 + 32 + 48
    small = EngineConfig(name="second", n_threads=1, n_ctx=cells)
    runtime = start(
        "table",
        "shelf",
        engines=(CPU, small),
        history=HistoryConfig(max_frames=6, max_turns=0),
        questions=limits,
    )
    for stream, seed in (("table", 1), ("shelf", 2)):
        show(runtime, stream, clip(seed).frames(6))
    settle(runtime)
    expected = undisturbed(runtime)
    shelf = ask(runtime, "shelf", max_tokens=32)
    room = runtime._loaded().trunks._capacity("second")
    per_history = runtime.stream_status("table").tokens
    assert room < 2 * per_history
    with held(engine_of(runtime, "second")._context, "import_range") as gate:
        other = runtime.ask("shelf", QUESTION, AskOptions(engine="second", max_tokens=32))
        gate.wait_until_reached()
        with hold_decoding(runtime, after_steps=4) as middle:
            answer = begin(runtime)
            middle.wait_until_reached()
            question = move(runtime, answer)
            assert not question.moving_to and not question.wants_kv
            trunks = runtime._loaded().trunks
            assert not any(trunks._budget._waiting.values())
    assert assert_goes_on(answer, expected).metrics.engine == "cpu"
    result = other.result(PATIENCE_S)
    assert (result.metrics.engine, result.token_ids) == ("second", shelf.token_ids)
    assert_works(runtime, expected)


# -------------------------------------------------------------------------------- a new history
def test_a_new_epoch_begins_meanwhile(two: Runtime) -> None:
    """The answer moves with the history that it sees; the new one is computed all the same."""
    greedy, expected = ask(two, max_tokens=32), undisturbed(two, sampling=SAMPLED)
    change = changes(1)[0]
    with half_moved(two, sampling=SAMPLED) as (answer, gate):
        question = question_of(two, answer)
        two.reset("table")
        show(two, "table", change.clip.frames(change.stop + 1))
        gate.open()
        eventually(lambda: question.is_leaving, "the history is there")
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.path) == ("second", "import")
    settle(two)
    assert ask(two, text=change.text).text == change.after
    assert_nothing_is_kept(two)
    two.reset("table")
    show(two, "table", clip(1).frames(6))
    settle(two)
    assert_works(two, greedy)


def test_the_epoch_ends_while_the_answer_leaves_and_the_other_engine_is_lost(
    robot: Robot,
) -> None:
    """It comes back to an engine that has dropped its history."""
    runtime = robot.runtime
    greedy, expected = undisturbed(runtime), undisturbed(runtime, sampling=SAMPLED)
    with leaving(runtime, sampling=SAMPLED) as answer:
        lose(robot, "second")
        runtime.reset("table")
    result = assert_goes_on(answer, expected)
    assert result.metrics.engine == "cpu"
    show(runtime, "table", changes(1)[0].clip.frames(N_FRAMES))
    settle(runtime)
    back_again(robot, "second", greedy)


def test_frames_go_on_being_published_while_an_answer_moves(two: Runtime) -> None:
    expected = undisturbed(two, sampling=SAMPLED)
    greedy = ask(two, max_tokens=32)
    two.move_ingestion("table", "second")
    with half_moved(two, sampling=SAMPLED) as (answer, gate):
        show(two, "table", clip(1).frames(8)[6:], 6)
        gate.open()
        eventually(lambda: two.stream_status("table").published.n == 9, "both frames")
    assert assert_goes_on(answer, expected).metrics.engine == "second"
    two.reset("table")
    two.move_ingestion("table", "cpu")
    show(two, "table", clip(1).frames(6))
    settle(two)
    assert_works(two, greedy)


# -------------------------------------------------------------------------------- what is counted
def test_what_was_handed_off_before_moves_back(two: Runtime) -> None:
    """The policy had another engine prefill: what that imported is counted once."""
    expected = undisturbed(two)
    hits = two.placement_status().residency
    stub = mover(two)
    way = Alternative("import", "second", "cpu", 0.0, 0.0, 1.0)
    stub.plan = lambda *_: Plan("stub", way, (way,), "it is said")  # type: ignore[attr-defined]
    with hold_decoding(two, after_steps=4) as gate:
        answer = begin(two)
        gate.wait_until_reached()
        del stub.plan  # type: ignore[attr-defined]
        question = move(two, answer)
        assert question.is_leaving
    result = assert_goes_on(answer, expected)
    metrics = result.metrics
    assert (metrics.prefill_engine, metrics.engine, metrics.path) == ("second", "second", "import")
    assert metrics.imported_tokens == result.context.tokens
    assert metrics.reused_tokens == 0
    after = two.placement_status()
    assert after.handoffs == 2
    assert (after.residency.hits, after.residency.misses) == (hits.hits, hits.misses + 1)
    assert_works(two, expected)


def test_what_was_handed_off_before_is_tried_once_where_it_moves_to(
    two: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it came with a state to the engine before does not excuse an engine that fails."""
    expected = undisturbed(two)
    way = Alternative("import", "second", "cpu", 0.0, 0.0, 1.0)
    stub, plan = mover(two), Plan("stub", way, (way,), "it is said")
    stub.plan = lambda *_: plan  # type: ignore[attr-defined]
    tried: list[int] = []

    def refuse(*_: Any) -> None:
        tried.append(1)
        raise ComputeError("out of luck")

    with hold_decoding(two, after_steps=4) as gate:
        answer = begin(two)
        gate.wait_until_reached()
        del stub.plan  # type: ignore[attr-defined]
        assert move(two, answer).is_leaving
        monkeypatch.setattr(engine_of(two, "second")._context, "decode_tokens", refuse)
        mover(two).plan = lambda state, asked, model: Plan(  # type: ignore[attr-defined]
            "stub", *_on_first_of(state), "it is said"
        )
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers, len(tried)) == ("cpu", 1, 1)


def _on_first_of(state: Any) -> tuple[Alternative, tuple[Alternative, ...]]:
    """On ``second`` as long as it may be used."""
    names = [engine.name for engine in state.engines]
    name = "second" if "second" in names else names[0]
    way = Alternative("local", name, name, 0.0, 0.0, 1.0)
    return way, (way,)


def test_what_comes_back_is_counted_once(robot: Robot) -> None:
    runtime = robot.runtime
    expected = undisturbed(runtime)
    runtime.evict("table", "cpu")  # the question has it imported from host memory
    ready_on_both(runtime)
    runtime.evict("table", "cpu")
    before = runtime.placement_status().residency
    with hold_decoding(runtime, after_steps=4) as gate:
        answer = begin(runtime)
        gate.wait_until_reached()
        move(runtime, answer)
        lose(robot, "second")
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.path) == ("cpu", "import")
    assert result.metrics.imported_tokens == result.context.tokens
    after = runtime.placement_status().residency
    assert after.misses == before.misses + 1


def test_the_plan_says_that_it_moves(start: Start) -> None:
    plans: list[Any] = []

    class Plans(Heard):
        def plan_made(self, record: Any) -> None:
            plans.append(record)

        def plan_finished(self, record: Any) -> None:
            plans.append(record)

    runtime = start("table", engines=TWO, listener=Plans())
    show(runtime, "table", clip(1).frames(3))
    settle(runtime)
    ready_on_both(runtime)
    errors = runtime.planning_status().finished.n
    plans.clear()
    with hold_decoding(runtime, after_steps=4) as gate:
        answer = begin(runtime)
        gate.wait_until_reached()
        move(runtime, answer)
    result = answer.result(PATIENCE_S)
    assert (result.metrics.engine, result.error) == ("second", "")
    settle(runtime)
    first, moved, ended = plans
    assert first.plan.chosen.decode_engine == "cpu"
    assert (moved.plan.policy, moved.plan.chosen.decode_engine) == ("stub", "second")
    assert moved.decided_s >= moved.predicted_first_token_s > 0.0
    assert moved.predicted_finished_s == pytest.approx(moved.decided_s + 1.0)
    assert ended.plan is moved.plan and ended.finish_reason == result.finish_reason.value
    assert result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert runtime.planning_status().finished.n == errors, "it is no measure of predictions"
