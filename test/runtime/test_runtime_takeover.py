"""An engine that has computed its own frames goes on with those of another stream."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    all_encoded,
    clip,
    engine_of,
    eventually,
    held,
    settle,
    show,
)
from moves import hold_import, question_of
from takeovers import (
    FRAME,
    N_FRAMES,
    OPENING,
    TO_SECOND,
    ask_table,
    assert_right,
    half_read,
    hold_frame,
    ingested,
    take_over,
)
from two_engines import QUESTION, ask

from edge_vlm_ros.engines.errors import ComputeError
from edge_vlm_ros.planning.ingestion import ingest_engine
from edge_vlm_ros.runtime import AskOptions, Runtime
from tools.reference_loop import ReferenceLoop


@pytest.mark.parametrize("done", [0, 1, 3])
def test_it_goes_on_where_the_other_one_is(
    behind: Runtime, reference: ReferenceLoop, done: int
) -> None:
    before = {name: ingested(behind, name) for name in ("cpu", "second")}
    with half_read(behind, done=done) as (answers, gate):
        eventually(lambda: behind.stream_status("table").published.n == 1 + done)
        take_over(behind)
        assert behind.stream_status("table").ingest_engine == "cpu"
        record = behind._loaded().trunks.table.get("second", "table", 0)
        assert record is not None and not record.reserved, "nobody needs what it would compute"
        if done:
            found = behind._loaded().trunks.prefixes.longest("second", [record.computed])
            assert found is not None and found.trunk == record.trunk
    assert_right(behind, answers, reference)
    # The frame that was being computed is lost, the others were left.
    assert ingested(behind, "second") - before["second"] == (done + 1) * FRAME
    assert ingested(behind, "cpu") - before["cpu"] == (N_FRAMES - done) * FRAME
    assert behind.placement_status().failed_imports == 0


def test_what_comes_later_is_computed_there_too(behind: Runtime, reference: ReferenceLoop) -> None:
    frames = clip(1).frames(N_FRAMES)
    with hold_frame(behind, "second", after=1) as gate:
        show(behind, "table", frames[:4])
        eventually(lambda: all_encoded(behind, "table"))
        first = ask_table(behind, 1)
        gate.wait_until_reached()
        take_over(behind)
        show(behind, "table", frames[4:], 4)
    assert not first[0].result(PATIENCE_S).error
    assert_right(behind, ask_table(behind), reference)


def test_a_question_may_still_be_answered_by_the_one_that_gave_the_frames_up(
    behind: Runtime, reference: ReferenceLoop
) -> None:
    with hold_frame(behind, "second", after=2) as gate:
        show(behind, "table", clip(1).frames(N_FRAMES))
        eventually(lambda: all_encoded(behind, "table"))
        free, bound = ask_table(behind, 1), ask_table(behind, 1, **TO_SECOND)
        gate.wait_until_reached()
        take_over(behind)
    result = assert_right(behind, [*bound, *free], reference)
    assert result.metrics.engine == "second"
    # It has given back what it held of the rest, and imports that.
    assert result.metrics.path == "import"
    assert result.metrics.imported_tokens == (N_FRAMES - 2) * FRAME


def test_it_comes_back(behind: Runtime, reference: ReferenceLoop) -> None:
    with hold_frame(behind, "second", after=1) as gate, hold_frame(behind, "cpu", after=2) as there:
        show(behind, "table", clip(1).frames(N_FRAMES))
        eventually(lambda: all_encoded(behind, "table"))
        answers = ask_table(behind)
        gate.wait_until_reached()
        take_over(behind)
        gate.open()
        there.wait_until_reached()
        eventually(lambda: behind.stream_status("table").published.n == 1 + 3)
        take_over(behind, "second")
        assert behind.stream_status("table").ingest_engine == "second"
    assert_right(behind, answers, reference)
    assert behind.placement_status().failed_imports == 0


def test_an_engine_that_cannot_hold_on_to_what_it_held_is_not_asked_for_it(
    behind: Runtime, reference: ReferenceLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history is computed anew where it is needed."""

    def refuse(*_: Any) -> None:
        raise ComputeError("no sequence is left")

    with monkeypatch.context() as broken:
        with hold_frame(behind, "second", after=3) as gate:
            show(behind, "table", clip(1).frames(N_FRAMES))
            eventually(lambda: all_encoded(behind, "table"))
            answers = ask_table(behind)
            gate.wait_until_reached()
            take_over(behind)
            core = engine_of(behind, "second")._work._core
            broken.setattr(core, "fork", refuse)
        for answer in answers:
            answer.result(PATIENCE_S)
        settle(behind)
        record = behind._loaded().trunks.table.get("second", "table", 0)
        assert record is None or not record.computed.n
    assert_right(behind, [*answers, *ask_table(behind, 1, engine="second")], reference)


def test_it_is_asked_when_an_engine_is_done_and_somebody_waits(behind: Runtime) -> None:
    policy = behind._loaded().planner.policy
    show(behind, "shelf", clip(2).frames(1))
    settle(behind)
    assert not policy.asked, "nobody waits"
    policy.engine, policy.stream = "cpu", "table"
    with half_read(behind, done=1) as (answers, gate):
        show(behind, "shelf", clip(2).frames(2)[1:], 1)
        eventually(lambda: behind.stream_status("table").ingest_engine == "cpu")
        questions = [question_of(behind, answer) for answer in answers]
        # In the same step of the coordinator; while the other engine is held nothing else happens.
        assert behind._on_loop(lambda: [question.engine for question in questions]) == ["cpu"] * 2
    assert all(not answer.result(PATIENCE_S).error for answer in answers)
    assert policy.asked[0] == "cpu"


def test_a_stream_that_was_given_to_an_engine_is_told_to_be(behind: Runtime) -> None:
    reader = behind._loaded().planner._reader
    behind.move_ingestion("table", "second")
    told = behind._on_loop(lambda: reader.state(("cpu", "second"), 0.0).streams)
    assert [(stream.name, stream.stays) for stream in told] == [("table", True), ("shelf", False)]


def test_a_policy_that_fails_leaves_no_question_behind(behind: Runtime) -> None:
    def broken(*_: Any) -> str:
        raise ZeroDivisionError

    with hold_frame(behind, "second", after=1) as gate:
        show(behind, "table", clip(1).frames(N_FRAMES))
        eventually(lambda: all_encoded(behind, "table"))
        ask_table(behind, 1)
        gate.wait_until_reached()
        behind._loaded().planner.policy.take_over = broken
        show(behind, "shelf", clip(2).frames(1))
        assert not ask(behind, "shelf", max_tokens=4).error


def test_it_is_not_given_back_while_what_was_computed_is_on_its_way(behind: Runtime) -> None:
    """The rule for steady streams would see nothing of it on the engine."""
    behind._loaded().planner.policy.ingest_engine = ingest_engine
    with half_read(behind, done=9, frames=12) as (answers, gate):
        eventually(lambda: behind.stream_status("table").published.n == 1 + 9)
        take_over(behind)
    assert all(not answer.result(PATIENCE_S).error for answer in answers)
    assert behind.stream_status("table").ingest_engine == "cpu"


def test_nobody_takes_over_what_has_just_been_taken_over(behind: Runtime) -> None:
    reader = behind._loaded().planner._reader

    def pinned() -> bool:
        streams = behind._on_loop(lambda: reader.state(("cpu", "second"), 0.0).streams)
        return next(bool(stream.stays) for stream in streams if stream.name == "table")

    with half_read(behind, done=2, questions=1) as (answers, gate):
        assert not pinned()
        take_over(behind)
        assert pinned()
    assert not answers[0].result(PATIENCE_S).error
    assert not pinned(), "all of it is computed"


def test_an_export_for_a_trunk_that_was_cut_meanwhile(
    behind: Runtime, reference: ReferenceLoop
) -> None:
    frames = clip(1).frames(N_FRAMES)
    show(behind, "table", frames[:2])
    settle(behind)
    ask(behind, engine="cpu", max_tokens=1)
    with hold_frame(behind, "second", after=0) as gate:
        show(behind, "table", frames[2:4], 2)
        gate.wait_until_reached()
        eventually(lambda: all_encoded(behind, "table"))
        behind.move_ingestion("table", "cpu")
        show(behind, "table", frames[4:], 4)
        eventually(lambda: behind.stream_status("table").published.n == 1 + N_FRAMES)
        with held(engine_of(behind, "cpu")._context, "export_range") as export:
            # It has computed two frames, is to compute two, and to import the rest then.
            behind.move_ingestion("table", "second")
            export.wait_until_reached()
            state = behind._loaded().streams["table"]
            behind._on_loop(lambda: setattr(state, "pinned", False))
            answers = ask_table(behind, 1)
            take_over(behind, "cpu")
            answers += ask_table(behind, 1, engine="second")
    assert_right(behind, answers, reference)
    assert behind.placement_status().failed_imports == 0


def test_what_was_to_follow_an_import_is_left_too(
    behind: Runtime, reference: ReferenceLoop
) -> None:
    before = ingested(behind, "cpu")
    with half_read(behind, done=2) as (answers, gate):
        with hold_import(behind, "cpu") as imports:
            take_over(behind)
            gate.open()
            imports.wait_until_reached()
            record = behind._loaded().trunks.table.get("cpu", "table", 0)
            assert record is not None
            eventually(lambda: record.tokens_to_compute)
            take_over(behind, "second")
    assert_right(behind, answers, reference)
    assert ingested(behind, "cpu") - before <= FRAME
    assert behind.placement_status().failed_imports == 0


def test_what_follows_an_import_is_foreseen(behind: Runtime, reference: ReferenceLoop) -> None:
    reader = behind._loaded().planner._reader
    with half_read(behind, done=1, questions=1) as (answers, gate):
        take_over(behind)
        told = behind._on_loop(lambda: reader.state(("cpu", "second"), 0.0))
        assert told.engine("cpu").ingest_tokens == (N_FRAMES - 1) * FRAME
        table = next(stream for stream in told.streams if stream.name == "table")
        assert (table.ingest_engine, table.ordered_tokens) == ("cpu", (N_FRAMES - 1) * FRAME)
        state, (asked,) = behind._on_loop(lambda: reader.backlog(("cpu", "second"), 0.0))
        assert asked.of("cpu").submitted == asked.history_tokens
        assert asked.of("second").submitted == asked.of("second").computed == OPENING + FRAME
        assert not any(engine.answers for engine in state.engines), "it is not counted twice"
    assert_right(behind, answers, reference)


def test_the_backlog_begins_with_those_whose_history_is_there(behind: Runtime) -> None:
    reader = behind._loaded().planner._reader
    show(behind, "shelf", clip(2).frames(1))
    settle(behind)
    with hold_frame(behind, "second", after=1) as gate:
        show(behind, "table", clip(1).frames(N_FRAMES))
        eventually(lambda: all_encoded(behind, "table"))
        first = ask_table(behind, 1)
        gate.wait_until_reached()
        policy = behind._loaded().planner.policy
        policy.plan = lambda *_: None  # it waits for a place
        ready = behind.ask("shelf", QUESTION, AskOptions(max_tokens=2))
        del policy.plan
        _, told = behind._on_loop(lambda: reader.backlog(("cpu", "second"), 0.0))
        assert [question.stream for question in told] == ["shelf", "table"]
    assert not first[0].result(PATIENCE_S).error
    assert not ready.result(PATIENCE_S).error


def test_what_was_imported_before_it_counts(behind: Runtime, reference: ReferenceLoop) -> None:
    frames = clip(1).frames(N_FRAMES)
    show(behind, "table", frames[:3])
    settle(behind)
    # The export is ordered while the engine is held at the first of the other frames.
    with hold_frame(behind, "second", after=2) as last, hold_frame(behind, "second", 0) as first:
        show(behind, "table", frames[3:], 3)
        eventually(lambda: all_encoded(behind, "table"))
        first.wait_until_reached()
        answers = ask_table(behind, 1, engine="cpu", path="import")
        first.open()
        last.wait_until_reached()
        record = behind._loaded().trunks.table.get("cpu", "table", 0)
        assert record is not None
        eventually(lambda: record.computed.n >= 4, "three frames are imported for it")
        take_over(behind)
    assert assert_right(behind, answers, reference).metrics.imported_tokens >= 3 * FRAME


def test_a_question_counts_for_the_engine_it_goes_to(
    behind: Runtime, reference: ReferenceLoop
) -> None:
    with half_read(behind, done=1, questions=1) as (answers, gate):
        routing = behind._loaded().planner._routing
        assert (routing.of("second"), routing.of("cpu")) == (1.0, 0.0)
        take_over(behind)
        assert (routing.of("second"), routing.of("cpu")) == (0.0, 1.0)
    assert_right(behind, answers, reference)
