"""The next epoch is computed while an engine has time, so that a full history stops nobody."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    all_encoded,
    assert_released,
    clip,
    engine_of,
    eventually,
    held,
    hold_decoding,
    hold_encoder,
    hold_ingestion,
    hold_prefill,
    settle,
    show,
)
from two_engines import QUESTION, TWO, ask

from edge_vlm_ros.engines.errors import ComputeError
from edge_vlm_ros.history import Epoch, Version
from edge_vlm_ros.runtime import (
    AskOptions,
    EngineConfig,
    HistoryConfig,
    NewestPublished,
    PlacementConfig,
    QuestionLimits,
    Runtime,
)
from tools.reference_loop import ReferenceLoop

FRAME = 52
OPENING = 3
SMALL = HistoryConfig(max_frames=6, keep_frames=3, max_turns=1)


def successor(runtime: Runtime, stream: str = "table") -> Epoch:
    made = runtime._loaded().streams[stream].history.successor
    assert made is not None
    return made


def ahead(runtime: Runtime, engine: str = "cpu", stream: str = "table") -> int:
    """Tokens that an engine has computed of the successor."""
    record = runtime._loaded().trunks.table.get(engine, stream, successor(runtime, stream).number)
    return 0 if record is None else record.computed.tokens


def computed(runtime: Runtime, engine: str = "cpu") -> int:
    return engine_of(runtime, engine).status().ingest_tokens


def test_a_full_history_has_one_frame_computed(start: Start, reference: ReferenceLoop) -> None:
    runtime = start(history=SMALL)
    frames = clip(1).frames(7)
    show(runtime, "table", frames[:6])
    settle(runtime)
    assert ahead(runtime) == OPENING + 3 * FRAME
    before, known = computed(runtime), successor(runtime)
    with hold_ingestion(runtime) as gate:
        show(runtime, "table", frames[6:], 6)
        gate.wait_until_reached()
        status = runtime.stream_status("table")
        assert (status.frames, status.pending_frames) == (4, 1)
        assert status.published == Version("table", known.number, 4) == Version("table", 1, 4)
        now = runtime.ask("table", QUESTION, AskOptions(max_tokens=4))
    result = now.result(PATIENCE_S)
    assert result.metrics.replayed_tokens == 0
    settle(runtime)
    assert computed(runtime) == before + FRAME + ahead(runtime)
    reference.reset()
    for frame in frames[3:]:
        reference.add_frame(frame)
    assert list(result.token_ids) == reference.ask(QUESTION, 4)[0]
    assert_released(runtime)


def test_an_engine_with_a_question_computes_nothing_ahead(start: Start) -> None:
    runtime = start(history=SMALL)
    show(runtime, "table", clip(1).frames(3))
    settle(runtime)
    with hold_decoding(runtime) as gate:
        answer = runtime.ask("table", QUESTION)
        gate.wait_until_reached()
        show(runtime, "table", clip(1).frames(6)[3:], 3)
        eventually(lambda: all_encoded(runtime, "table"))
    answer.result(PATIENCE_S)
    eventually(lambda: ahead(runtime) == OPENING + 3 * FRAME, "there is time now")
    steps: list[int] = []
    with held(engine_of(runtime)._context, "decode_embeddings", lambda *a: bool(steps.append(1))):
        with hold_decoding(runtime) as gate:
            answer = runtime.ask("table", QUESTION)
            gate.wait_until_reached()
            show(runtime, "table", clip(1).frames(7)[6:], 6)
            eventually(lambda: all_encoded(runtime, "table"))
        settle(runtime)
    assert len(steps) == 2, "the frame, and its copy in what follows"
    assert_released(runtime)


def test_which_engine_is_idle(start: Start) -> None:
    runtime = start(engines=TWO, history=SMALL)
    is_idle = runtime._loaded().planner.is_idle
    show(runtime, "table", clip(1).frames(1))
    settle(runtime)
    assert is_idle("cpu") and is_idle("second")
    with hold_decoding(runtime, "second") as gate:
        answer = runtime.ask("table", QUESTION, AskOptions(engine="second"))
        gate.wait_until_reached()
        assert is_idle("cpu") and not is_idle("second")
    answer.result(PATIENCE_S)
    with hold_encoder(runtime) as gate:
        show(runtime, "table", clip(1).frames(2)[1:], 1)
        gate.wait_until_reached()
        answer = runtime.ask("table", QUESTION)
        assert not is_idle("cpu") and not is_idle("second"), "it may go to either"
    answer.result(PATIENCE_S)
    settle(runtime)
    assert is_idle("cpu") and is_idle("second")


def test_time_on_an_engine_goes_to_every_stream(start: Start) -> None:
    """The answer is about another stream than the frames."""
    runtime = start("table", "shelf", history=SMALL)
    show(runtime, "shelf", clip(2).frames(1))
    settle(runtime)
    with hold_decoding(runtime) as gate:
        answer = runtime.ask("shelf", QUESTION)
        gate.wait_until_reached()
        show(runtime, "table", clip(1).frames(5))
        eventually(lambda: all_encoded(runtime, "table"))
    assert not answer.result(PATIENCE_S).error
    eventually(lambda: ahead(runtime) == OPENING + 2 * FRAME)


@pytest.mark.parametrize("equal", [True, False])
def test_an_idle_engine_helps_if_it_computes_the_same(start: Start, equal: bool) -> None:
    runtime = start(engines=TWO, history=SMALL)
    table, slots = runtime._loaded().streams["table"], runtime._loaded().slots
    assert slots.are_equal("cpu", "second")
    if not equal:
        slots["second"].equal.clear()
    table.is_idle = lambda engine: engine == "second"
    frames = clip(1).frames(7)
    show(runtime, "table", frames[:6])
    settle(runtime)
    assert ahead(runtime) == 0
    assert ahead(runtime, "second") == (OPENING + 3 * FRAME if equal else 0)
    before = computed(runtime)
    show(runtime, "table", frames[6:], 6)
    result = ask(runtime)
    assert (result.metrics.engine, result.context.frames) == ("cpu", 4)
    assert computed(runtime) == before + (FRAME if equal else OPENING + 4 * FRAME)
    assert ask(runtime, engine="second", path="replay").token_ids == result.token_ids


def test_without_room_to_spare_nothing_is_computed_ahead(start: Start) -> None:
    limits = QuestionLimits(max_question_tokens=100, default_max_tokens=16, max_answer_tokens=97)
    history = HistoryConfig(
        max_frames=6, keep_frames=3, max_turns=0, max_tokens=OPENING + 6 * FRAME
    )
    least = OPENING + 6 * FRAME + 100 + 97
    runtime = start(
        engine=EngineConfig(n_threads=1, n_ctx=least), history=history, questions=limits
    )
    frames = clip(1).frames(7)
    show(runtime, "table", frames[:6])
    settle(runtime)
    assert ahead(runtime) == 0
    show(runtime, "table", frames[6:], 6)
    settle(runtime)
    assert runtime.stream_status("table").frames == 4
    assert not ask(runtime).error
    assert_released(runtime)


def test_what_was_given_up_gives_its_cells_back(start: Start) -> None:
    runtime = start(history=SMALL)
    show(runtime, "table", clip(1).frames(5))
    ask(runtime, commit=True)
    settle(runtime)
    assert ahead(runtime) > OPENING + 2 * FRAME, "with the turn"
    ask(runtime, text="What changed?", commit=True)  # it pushes the other one out
    settle(runtime)
    assert runtime._loaded().streams["table"].history.successor is None
    assert_released(runtime)


def test_an_eviction_and_a_reset_take_it_along(start: Start) -> None:
    runtime = start(history=SMALL)
    show(runtime, "table", clip(1).frames(5))
    settle(runtime)
    assert runtime.evict("table", "cpu") == 2
    eventually(lambda: engine_of(runtime).status().cells_used == 0)
    assert not ask(runtime).error
    settle(runtime)
    assert ahead(runtime) == 0, "nobody asked for it"
    runtime.reset("table")
    show(runtime, "table", clip(1).frames(5))
    settle(runtime)
    assert ahead(runtime) == OPENING + 2 * FRAME
    runtime.reset("table")
    assert_released(runtime)


# --------------------------------------------------------------------------- nobody pays for it
def test_what_was_computed_ahead_and_lost_is_not_published(start: Start) -> None:
    """Until somebody holds the new epoch the old one stands in for it."""
    runtime = start(
        engines=TWO, history=SMALL, placement=PlacementConfig(retry_s=1e6, max_retry_s=1e6)
    )
    table = runtime._loaded().streams["table"]
    table.is_idle = lambda engine: engine == "second"
    frames = clip(1).frames(7)
    show(runtime, "table", frames[:6])
    settle(runtime)
    assert ahead(runtime, "second") == OPENING + 3 * FRAME
    table.is_idle = lambda engine: False
    engine_of(runtime, "second")._context.decode_tokens = lambda *_: 1 / 0  # its thread ends
    assert not ask(runtime, engine="second", max_tokens=1).error
    assert not runtime._loaded().slots["second"].ready
    with hold_ingestion(runtime) as gate:
        show(runtime, "table", frames[6:], 6)
        gate.wait_until_reached()
        known = runtime.ask("table", QUESTION, AskOptions(binding=NewestPublished(), max_tokens=1))
        assert runtime.stream_status("table").registered.epoch == 1
    result = known.result(PATIENCE_S)
    assert (result.context.version.epoch, result.context.frames) == (0, 6)
    assert result.metrics.replayed_tokens == 0
    settle(runtime)
    assert ask(runtime).context.frames == 4


def test_answers_side_by_side_keep_their_room(start: Start) -> None:
    limits = QuestionLimits(max_question_tokens=20, default_max_tokens=180, max_answer_tokens=180)
    history = HistoryConfig(
        max_frames=6, keep_frames=3, max_turns=0, max_tokens=OPENING + 6 * FRAME
    )
    n_ctx = OPENING + 6 * FRAME + 2 * 200
    engine = EngineConfig(n_threads=1, n_ctx=n_ctx, max_parallel=2)
    runtime = start(engine=engine, history=history, questions=limits)
    show(runtime, "table", clip(1).frames(6))
    settle(runtime)
    with hold_decoding(runtime) as decoding:
        with hold_prefill(runtime) as prefill:
            answers = [runtime.ask("table", QUESTION) for _ in range(2)]
            prefill.wait_until_reached()
            questions = runtime._loaded().answering.questions
            eventually(lambda: all(q.running_on for q in questions.values()), "both are given")
        decoding.wait_until_reached()
        status = engine_of(runtime).status()
        assert (status.running_answers, status.waiting_answers) == (2, 0)
    assert not any(answer.result(PATIENCE_S).error for answer in answers)


def test_what_fails_ahead_is_tried_once_and_counts_for_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = start(history=SMALL)
    engine = engine_of(runtime)
    decode, failures = engine._context.decode_embeddings, [0]
    left = [1_000_000]

    def fail_in_epoch_1(rows: Any, first: int, sequence: int, *rest: Any) -> None:
        trunks = engine._work.trunks._trunks.values()
        epoch = next(t.trunk_id.epoch for t in trunks if t.sequence == sequence)
        if epoch == 1 and left[0]:
            left[0] -= 1
            failures[0] += 1
            raise ComputeError("bad luck")
        decode(rows, first, sequence, *rest)

    monkeypatch.setattr(engine._context, "decode_embeddings", fail_in_epoch_1)
    show(runtime, "table", clip(1).frames(6))
    settle(runtime)
    eventually(lambda: failures[0])
    assert not ask(runtime, max_tokens=1).error
    settle(runtime)
    assert failures[0] == 1
    left[0] = 2  # of three tries
    show(runtime, "table", clip(1).frames(7)[6:], 6)
    result = ask(runtime)
    assert (result.error, result.context.frames) == ("", 4)
    assert_released(runtime)


def test_what_is_half_done_ahead_belongs_to_the_epoch_that_begins(start: Start) -> None:
    """From then on it is what the stream grows: a failure does not end it, nor want of room."""
    runtime = start(history=SMALL)
    table = runtime._loaded().streams["table"]
    frames = clip(1).frames(7)
    show(runtime, "table", frames[:5])
    settle(runtime)
    table.is_idle = lambda engine: False
    show(runtime, "table", frames[5:6], 5)
    settle(runtime)
    assert ahead(runtime) == OPENING + 2 * FRAME
    record = runtime._loaded().trunks.table.get("cpu", "table", successor(runtime).number)
    assert record is not None and record.ahead and not table.grows(record)
    with hold_ingestion(runtime) as gate:
        show(runtime, "table", frames[6:], 6)
        gate.wait_until_reached()
        assert not record.ahead and table.grows(record)
    settle(runtime)
    assert record.computed.n == 1 + 4


def test_an_answer_about_an_older_epoch_elsewhere_hinders_nothing(start: Start) -> None:
    runtime = start(engines=TWO, history=SMALL)
    frames = clip(1).frames(9)
    show(runtime, "table", frames[:6])
    settle(runtime)
    with hold_decoding(runtime, "second") as gate:
        answer = runtime.ask("table", QUESTION, AskOptions(engine="second", max_tokens=30))
        gate.wait_until_reached()
        show(runtime, "table", frames[6:], 6)
        eventually(lambda: runtime.stream_status("table").published.n == 1 + 6)
        assert len(runtime._loaded().streams["table"].history.epochs) == 2
        eventually(lambda: ahead(runtime) == OPENING + 3 * FRAME, "cpu has time")
        assert runtime._loaded().slots["second"].ready, "the answer is still held there"
    assert not answer.result(PATIENCE_S).error


def test_frames_that_have_come_go_first(start: Start) -> None:
    """Those of other streams too, but for the one item that is being computed."""
    runtime = start("table", "shelf", history=SMALL)
    table = runtime._loaded().streams["table"]
    table.is_idle = lambda engine: False
    show(runtime, "table", clip(1).frames(6))
    settle(runtime)
    trunks = engine_of(runtime)._work.trunks
    order: list[tuple[str, int]] = []
    publish = trunks._publish

    def noted(trunk: Any, seconds: float) -> None:
        order.append((trunk.trunk_id.stream, trunk.trunk_id.epoch))
        publish(trunk, seconds)

    trunks._publish = noted
    with hold_ingestion(runtime) as gate:
        show(runtime, "shelf", clip(2).frames(4))
        gate.wait_until_reached()
        eventually(lambda: all_encoded(runtime, "shelf"))
        table.is_idle = runtime._loaded().planner.is_idle
    settle(runtime)
    first, last = (
        order.index(("table", 1)),
        max(i for i, o in enumerate(order) if o == ("shelf", 0)),
    )
    assert first > last
    assert ahead(runtime) == OPENING + 3 * FRAME


def test_nothing_is_computed_ahead_while_frames_wait(start: Start) -> None:
    runtime = start(engines=TWO, history=SMALL)
    coordinator = runtime._loaded()
    table = coordinator.streams["table"]
    table.is_idle = lambda engine: engine == "second"
    with hold_ingestion(runtime) as gate:
        show(runtime, "table", clip(1).frames(5))
        gate.wait_until_reached()
        eventually(lambda: all_encoded(runtime, "table"))
        number = successor(runtime).number
        begun = runtime._on_loop(lambda: coordinator.trunks.table.of_epoch("table", number))
        assert all(record.submitted.n <= 1 for record in begun), "at most what all begin with"
    settle(runtime)
    assert ahead(runtime, "second") == OPENING + 2 * FRAME


def test_it_makes_room_first_and_is_not_kept_elsewhere(start: Start) -> None:
    limits = QuestionLimits(max_question_tokens=20, default_max_tokens=20, max_answer_tokens=20)
    history = HistoryConfig(
        max_frames=6, keep_frames=3, max_turns=0, max_tokens=OPENING + 6 * FRAME
    )
    engine = EngineConfig(n_threads=1, n_ctx=768, max_parallel=1)
    runtime = start("table", "shelf", engine=engine, history=history, questions=limits)
    show(runtime, "table", clip(1).frames(6))
    settle(runtime)
    assert ahead(runtime) == OPENING + 3 * FRAME
    show(runtime, "shelf", clip(2).frames(6))
    settle(runtime)
    assert ahead(runtime) == 0
    assert runtime._loaded().trunks.table.holder("cpu", "table", 0, 1 + 6) is not None
    assert runtime.stream_status("shelf").published.n == 1 + 6
    assert runtime.placement_status().exported_bytes == 0


def test_an_engine_that_has_handed_its_answer_off_is_idle(start: Start) -> None:
    runtime = start(engines=TWO, history=SMALL)
    show(runtime, "table", clip(1).frames(2))
    settle(runtime)
    with hold_decoding(runtime, "second") as gate:
        there = AskOptions(engine="second", prefill_engine="cpu")
        answer = runtime.ask("table", QUESTION, there)
        gate.wait_until_reached()
        assert runtime._loaded().planner.is_idle("cpu")
        assert not runtime._loaded().planner.is_idle("second")
    assert answer.result(PATIENCE_S).metrics.prefill_engine == "cpu"
