"""Ends, full caches, waiting and rest: what an engine does besides answering."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_helpers import Driver, Items, MakeDriver, assert_nothing_is_left, hold, n_tokens

from edge_vlm_ros.engines.branch import cells_needed
from edge_vlm_ros.engines.errors import ContextError
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AppendFailed,
    AppendToTrunk,
    EndAnswer,
    EngineFailed,
    FinishReason,
    PrefillStarted,
    TokenSegment,
    TrunkId,
    VersionComputed,
)

TABLE, SHELF = TrunkId("table", 0), TrunkId("shelf", 0)
LONG = "Describe the scene."


# -------------------------------------------------------------------------------- ends
def test_an_answer_ended_while_it_waits(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(max_parallel=1)
    driver.ingest(TABLE, story, last=2)
    n = n_tokens(story, 2)
    driver.submit(driver.question(1, TABLE, n, LONG), driver.question(2, TABLE, n, LONG))
    driver.cancel(2)
    second = driver.finished(2)
    assert (second.text, second.ids) == ("", ())
    assert second.end.reason is FinishReason.CANCELLED
    assert driver.finished(1).end.reason is FinishReason.STOP
    assert PrefillStarted(2) not in driver.seen
    assert_nothing_is_left(driver, cells=n, trunks=1)


def test_an_answer_ended_in_its_prefill(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(chunk_tokens=2)
    driver.ingest(TABLE, story, last=2)
    n = n_tokens(story, 2)
    entered, go_on = hold(driver, "decode_tokens")
    driver.submit(driver.question(1, TABLE, n, LONG))
    assert entered.wait(60)
    driver.cancel(1)
    go_on.set()
    outcome = driver.finished(1)
    assert (outcome.end.reason, outcome.ids) == (FinishReason.CANCELLED, ())
    assert driver.of_type(PrefillStarted)
    assert driver.settle().prefill_tokens == 2  # the step it was in, no other
    assert_nothing_is_left(driver, cells=n, trunks=1)


def test_an_answer_ended_while_it_decodes(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    n = n_tokens(story, 2)
    whole = driver.ask(1, TABLE, n, LONG)
    driver.submit(driver.question(2, TABLE, n, LONG))
    driver.cancel(2)
    driver.cancel(2)  # again: one end is told
    driver.finished(2)
    command = driver.question(3, TABLE, n, LONG, stop=("no such text",))
    fourth = n + len(command.prompt) + 3
    entered, go_on = hold(driver, "decode_tokens", lambda _, positions, *__: positions[0] == fourth)
    driver.submit(command)
    assert entered.wait(60)
    driver.cancel(3)
    go_on.set()
    third = driver.finished(3)
    assert third.end.reason is FinishReason.CANCELLED
    assert third.ids == whole.ids[:5]  # with the token of the step it was in
    assert third.text == b"".join(map(driver.model.piece, third.ids)).decode()
    assert_nothing_is_left(driver, cells=n, trunks=1)
    assert [e.answer_id for e in driver.of_type(AnswerFinished)] == [1, 2, 3]


def test_the_reason_of_an_end_is_told(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(max_parallel=1)
    driver.ingest(TABLE, story, last=2)
    for answer_id in (1, 2):
        driver.submit(driver.question(answer_id, TABLE, 0, LONG, max_tokens=100))
    driver.submit(EndAnswer(2, FinishReason.DEADLINE), EndAnswer(99, FinishReason.CANCELLED))
    assert driver.finished(2).end.reason is FinishReason.DEADLINE
    assert driver.finished(1).end.reason is not FinishReason.ERROR


def test_a_trunk_dropped_while_it_grows(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(chunk_tokens=4)
    driver.append(TABLE, story)
    driver.until_type(VersionComputed)
    driver.drop(TABLE, SHELF)
    assert_nothing_is_left(driver)
    driver.ingest(TABLE, story, last=2)  # from the beginning again
    assert_nothing_is_left(driver, cells=n_tokens(story, 2), trunks=1)


def test_ends_in_any_order_leave_nothing(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(max_parallel=3, chunk_tokens=8)
    driver.ingest(TABLE, story, last=3)
    driver.ingest(SHELF, story, last=2)
    for k in range(9):
        trunk, n = ((TABLE, 3), (SHELF, 2))[k % 2]
        driver.submit(driver.question(k, trunk, n_tokens(story, n), LONG, max_tokens=8 + k))
    driver.drop(TABLE)
    for k in (8, 0, 4, 3):
        driver.cancel(k)
    for k in range(9):
        driver.finished(k)
    assert_nothing_is_left(driver, cells=n_tokens(story, 2), trunks=1)


# -------------------------------------------------------------------------------- room
def test_answers_wait_for_cells_and_all_end(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(n_ctx=256, answer_cells=100, max_parallel=8)
    driver.ingest(TABLE, story, last=2)
    most_running = 0
    n = n_tokens(story, 2)
    asked = [driver.question(k, TABLE, n, LONG, max_tokens=60) for k in range(8)]
    driver.submit(*asked)
    for k in range(8):
        driver.finished(k)
        most_running = max(most_running, driver.answers[k].end.running_answers)
    assert {driver.answers[k].text for k in range(8)} == {driver.answers[0].text}
    assert driver.answers[0].end.reason is FinishReason.STOP
    assert most_running == (256 - n) // cells_needed(asked[0]) == 2
    assert_nothing_is_left(driver, cells=n_tokens(story, 2), trunks=1)


def test_an_answer_too_large_is_refused_at_once(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(answer_cells=20)
    driver.ingest(TABLE, story, last=2)
    outcome = driver.ask(1, TABLE, 0, LONG, max_tokens=60)
    assert outcome.end.reason is FinishReason.ERROR
    assert "at most 20" in outcome.end.error
    assert driver.ask(2, TABLE, 0, LONG, max_tokens=4).end.reason is FinishReason.LENGTH


def test_a_frame_without_room_waits_until_answers_end(
    make_driver: MakeDriver, story: Items
) -> None:
    """Cells promised to answers are not given to cameras; freed ones are."""
    driver = make_driver(n_ctx=256, answer_cells=80)
    driver.ingest(TABLE, story, last=3)  # 107 of 256
    n = n_tokens(story, 3)
    whole = driver.ask(1, TABLE, n, LONG, max_tokens=60)
    for k in (2, 3):
        driver.submit(driver.question(k, TABLE, n, LONG, max_tokens=60))
    driver.append(TABLE, story, first=4, last=4)
    driver.until(lambda e: isinstance(e, VersionComputed) and e.n == 4)
    assert driver.answers[2].finished or driver.answers[3].finished
    assert [driver.finished(k).ids for k in (2, 3)] == [whole.ids, whole.ids]


def test_cameras_leave_room_for_one_answer(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(n_ctx=256, answer_cells=128)
    driver.append(TABLE, story)
    driver.until(lambda e: isinstance(e, VersionComputed) and e.n == 3)
    status = driver.settle()
    assert status.cells_used <= 128
    outcome = driver.ask(1, TABLE, n_tokens(story, 3), LONG, max_tokens=100)
    assert outcome.end.reason is FinishReason.STOP
    driver.drop(TABLE)
    driver.ingest(SHELF, story, last=2)


def test_the_cache_must_hold_an_answer(make_driver: MakeDriver) -> None:
    with pytest.raises(ContextError, match="n_ctx is 64, one answer needs 65"):
        make_driver(n_ctx=64, answer_cells=65)


def test_sequences_run_out(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(max_trunks=1, max_branches=1, max_parallel=1)
    driver.ingest(TABLE, story, last=2)
    entered, go_on = hold(driver, "decode_tokens")
    driver.submit(driver.question(1, TABLE, 0, LONG))
    assert entered.wait(60)
    driver.submit(driver.question(2, TABLE, 0, LONG), AppendToTrunk(SHELF, 1, story[0]))
    go_on.set()
    assert "sequence ids of the engine are in use" in driver.finished(2).end.error
    failed = driver.until_type(AppendFailed)
    assert (failed.trunk, failed.n) == (SHELF, 1)
    assert "sequence ids of the engine are in use" in failed.error
    assert driver.finished(1).end.reason is not FinishReason.ERROR
    driver.ingest(SHELF, story, last=2)  # from the first version, now that one is free


# -------------------------------------------------------------------------------- refusals
def test_unknown_trunks_and_places(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    n = n_tokens(story, 2)
    for answer_id, trunk, tokens in [(1, SHELF, 3), (2, TABLE, n + 1), (3, TrunkId("table", 1), 0)]:
        outcome = driver.ask(answer_id, trunk, tokens, LONG)
        assert outcome.end.reason is FinishReason.ERROR
        assert "are needed" in outcome.end.error and trunk.stream in outcome.end.error
    assert_nothing_is_left(driver, cells=n, trunks=1)


def test_an_empty_prompt_fails_that_answer(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    driver.submit(replace(driver.question(1, TABLE, 0, LONG), prompt=()))
    assert "a batch of 0 rows" in driver.finished(1).end.error
    assert driver.ask(2, TABLE, 0, LONG).end.error == ""


def test_versions_must_follow_one_another(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.append(TABLE, story, first=2, last=2)
    assert driver.until_type(AppendFailed).n == 2
    driver.ingest(TABLE, story, last=2)
    driver.append(TABLE, story, first=4, last=4)
    assert driver.until_type(AppendFailed).n == 4
    driver.append(TABLE, story, first=1, last=3)  # 1 and 2 sent again: not computed again
    driver.until_version(TABLE, 3)
    assert [v.n for v in driver.of_type(VersionComputed)] == [1, 2, 3]
    assert_nothing_is_left(driver, cells=n_tokens(story, 3), trunks=1)


# -------------------------------------------------------------------------------- rest
def engine_cpu_s(driver: Driver) -> float:
    """CPU seconds of the engine's thread so far."""
    native_id = driver.engine._thread.native_id
    fields = Path(f"/proc/self/task/{native_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_engine(driver: Driver, story: Items) -> None:
    driver.ingest(TABLE, story, last=2)


def blocked_ingest(driver: Driver, story: Items) -> None:
    """No cells for the next frame, and no answer that could free some."""
    driver.append(TABLE, story)
    driver.until(lambda e: isinstance(e, VersionComputed) and e.n == 3)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize("state", [idle_engine, blocked_ingest])
def test_rest_takes_no_cpu(
    make_driver: MakeDriver, story: Items, state: Callable[[Driver, Items], None]
) -> None:
    driver = make_driver(n_ctx=256, answer_cells=128)
    state(driver, story)
    driver.settle()
    before, start = engine_cpu_s(driver), time.monotonic()
    time.sleep(0.5)
    spent, passed = engine_cpu_s(driver) - before, time.monotonic() - start
    assert spent < 0.1 * passed, "the engine's thread spins"
    assert driver.events.empty()


def test_closing_while_answers_run(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(max_parallel=2)
    driver.ingest(TABLE, story, last=2)
    entered, go_on = hold(driver, "decode_tokens")
    for k in range(6):
        driver.submit(driver.question(k, TABLE, 0, LONG))
    driver.append(TABLE, story, first=3)
    assert entered.wait(60)
    queued = driver.engine._commands.qsize()
    closing = threading.Thread(target=driver.engine.close)
    closing.start()
    while driver.engine._commands.qsize() == queued:
        time.sleep(0.001)
    go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    while not driver.events.empty():
        driver.next_event()
    assert driver.of_type(AnswerFinished) == []
    assert not driver.engine._thread.is_alive()
    driver.engine.close()


def test_closing_does_not_give_up_a_call_that_takes_long(
    make_driver: MakeDriver, story: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights would be freed under its feet."""
    monkeypatch.setattr("edge_vlm_ros.engines.llama_engine.CLOSE_TIMEOUT_S", 0.01)
    driver = make_driver()
    entered, go_on = hold(driver, "decode_tokens")
    driver.append(TABLE, story, last=1)
    assert entered.wait(30)
    closing = threading.Thread(target=driver.engine.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    go_on.set()
    closing.join(30)
    assert not closing.is_alive() and not driver.engine._thread.is_alive()


def test_an_unexpected_error_is_the_engines_last_word(
    make_driver: MakeDriver, story: Items, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    driver.submit("nonsense")  # type: ignore[arg-type]
    failed = driver.until_type(EngineFailed)
    assert failed.engine == "test"
    assert "TypeError" in failed.error and "nonsense" in failed.error
    driver.engine._thread.join(30)
    assert "engine test failed" in caplog.text
    driver.engine.close()


def test_a_crash_within_a_step(
    make_driver: MakeDriver, story: Items, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_driver()

    def crash(*_: object) -> None:
        raise RuntimeError("the ceiling came down")

    driver.engine._context.decode_tokens = crash  # type: ignore[method-assign]
    driver.submit(AppendToTrunk(TABLE, 1, (TokenSegment((1,)),)))
    assert "RuntimeError: the ceiling came down" in driver.until_type(EngineFailed).error


def test_status(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(n_ctx=512)
    driver.ingest(TABLE, story, last=2)
    driver.ask(1, TABLE, n_tokens(story, 2), LONG)
    status = driver.settle()
    assert (status.name, status.device) == ("test", "cpu")
    assert (status.cells, status.cells_used, status.trunks) == (512, n_tokens(story, 2), 1)
    assert "qwen3" in status.model
    assert status.exact
    assert status.prefill_tok_s > 0 and status.decode_tok_s > 0 and status.busy_s > 0
    assert status.memory_kv_bytes == driver.engine._context.kv_bytes > 0
    assert status.memory_weights_bytes == driver.model.n_bytes
