"""Every step of an engine is on record."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from engine_helpers import Items, MakeDriver, boundary, n_tokens
from transfer_helpers import QUESTION

from edge_vlm_ros.engines.branch import Branch
from edge_vlm_ros.engines.devices import Device
from edge_vlm_ros.engines.protocol import ExportRange, RangeExported, TrunkId
from edge_vlm_ros.engines.step_record import MAX_RECORDS, Activity, StepLog, StepRecord

TABLE = TrunkId("table", 0)


def record(rows: int) -> StepRecord:
    return StepRecord(Activity.DECODE, 1.0, 0.1, rows, rows, 0)


def test_steps_are_taken_once_and_in_order() -> None:
    log = StepLog()
    for rows in (1, 2, 3):
        log.add(record(rows))
    assert [step.rows for step in log.take()] == [1, 2, 3]
    assert log.take() == []


def test_the_oldest_are_forgotten_when_nobody_takes_them() -> None:
    log = StepLog()
    for rows in range(MAX_RECORDS + 2):
        log.add(record(rows))
    taken = log.take()
    assert len(taken) == MAX_RECORDS and taken[0].rows == 2


def test_an_engine_records_what_it_computes_and_moves(
    make_driver: MakeDriver, story: Items
) -> None:
    driver = make_driver(chunk_tokens=16)
    driver.ingest(TABLE, story, last=3)
    outcome = driver.ask(1, TABLE, boundary(story, 3), QUESTION)
    driver.submit(ExportRange(1, TABLE, (boundary(story, 1), boundary(story, 3))))
    driver.until_type(RangeExported)
    driver.settle()
    steps = driver.engine.take_steps()
    rows = Counter[Activity]()
    for step in steps:
        rows[step.activity] += step.rows
        assert step.seconds > 0.0 and step.rows >= step.sequences == 1
    prompt = driver.question(2, TABLE, boundary(story, 3), QUESTION).prompt
    assert rows[Activity.INGEST] == n_tokens(story, 3)
    assert rows[Activity.PREFILL] == len(prompt)
    # The first token comes with the prefill; one more step makes the token that ends the answer.
    assert rows[Activity.DECODE] == len(outcome.ids)
    assert rows[Activity.EXPORT] == n_tokens(story, 3) - n_tokens(story, 1)
    decode = [step for step in steps if step.activity is Activity.DECODE]
    first = n_tokens(story, 3) + len(prompt)
    assert [step.history_tokens for step in decode] == list(range(first, first + len(decode)))
    assert all(a.started + a.seconds <= b.started + 1e-3 for a, b in pairwise(steps))
    assert {step.label for step in steps if step.activity is Activity.INGEST} == {"table"}


def test_a_chunk_without_output_is_waited_for(
    make_driver: MakeDriver, story: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a device queues chunk after chunk, and the next answer's token waits for all."""
    waits: list[Device] = []
    monkeypatch.setattr(Device, "wait_for_server", lambda self: waits.append(self))
    driver = make_driver(chunk_tokens=16)
    driver.ingest(TABLE, story, last=2)
    steps = driver.engine.take_steps()
    assert len(waits) == len(steps) == sum(s.activity is Activity.INGEST for s in steps)


def test_a_step_ends_when_its_token_is_there(
    make_driver: MakeDriver, story: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server still computes when the call returns: only sampling waits for it."""
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    driver.engine.take_steps()
    seconds = [0.0]
    real = Branch.sample

    def sample(branch: Branch, context: object, row: int) -> int:
        seconds[0] += 7.0
        return real(branch, context, row)

    monkeypatch.setattr(Branch, "sample", sample)
    monkeypatch.setattr(driver.engine._work._core, "clock", lambda: seconds[0])
    driver.ask(1, TABLE, boundary(story, 2), QUESTION)
    driver.settle()
    steps = driver.engine.take_steps()
    assert {step.activity for step in steps} == {Activity.PREFILL, Activity.DECODE}
    assert {step.seconds for step in steps} == {7.0}
