"""Frames that a question waits for take turns with decoding; others get their share of the time."""

from __future__ import annotations

from engine_helpers import Driver, Items, MakeDriver, boundary, hold, n_tokens
from transfer_helpers import QUESTION

from edge_vlm_ros.engines.protocol import DropTrunk, HurryTrunk, TrunkId, VersionComputed
from edge_vlm_ros.engines.step_record import Activity

TABLE, SHELF = TrunkId("table", 0), TrunkId("shelf", 0)
AWAITED = 3


def steps_beside_an_answer(driver: Driver, story: Items, awaited: int) -> list[tuple[str, str]]:
    """Kind and label of all steps from when frames came, while an answer is being decoded."""
    driver.ingest(TABLE, story)
    start = boundary(story, len(story))
    first = start.tokens + len(driver.question(1, TABLE, start, QUESTION).prompt)
    entered, go_on = hold(driver, "decode_tokens", lambda _, positions, *__: first in positions)
    driver.submit(driver.question(1, TABLE, start, QUESTION))
    assert entered.wait(60)
    driver.engine.take_steps()
    driver.append(SHELF, story)
    if awaited:
        driver.submit(HurryTrunk(SHELF, awaited))
    go_on.set()
    driver.finished(1)
    driver.until_version(SHELF, len(story))
    driver.settle()
    return [(s.activity.value, s.label) for s in driver.engine.take_steps()]


def test_what_is_waited_for_alternates_with_decoding(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(chunk_tokens=8, ingest_share=0.01)
    steps = steps_beside_an_answer(driver, story, AWAITED)
    kinds = [activity for activity, _ in steps]
    chunks = -(-n_tokens(story, AWAITED) // 8)  # at least so many
    decoding = kinds[: len(kinds) - kinds[::-1].index(Activity.DECODE.value)]
    wanted = [Activity.DECODE.value, Activity.INGEST.value]
    n = min(chunks, len(decoding) // 2)
    assert n >= 5 and decoding[: 2 * n] == wanted * n
    # What nobody waits for has its small share again.
    after = decoding[2 * (chunks + 2 * AWAITED) :]
    assert after.count(Activity.INGEST.value) <= 1 + len(after) // 4


def test_a_question_does_not_wait_for_all_frames_of_others(
    make_driver: MakeDriver, story: Items
) -> None:
    """They take turns, chunk by chunk, whichever came first."""
    driver = make_driver(chunk_tokens=8)
    driver.ingest(TABLE, story)
    entered, go_on = hold(driver, "decode_tokens", lambda *_: True)
    driver.append(SHELF, story)
    driver.submit(HurryTrunk(SHELF, len(story)))
    assert entered.wait(60)  # its opening
    driver.engine.take_steps()
    start = boundary(story, len(story))
    question = driver.question(1, TABLE, start, QUESTION)
    driver.submit(question)
    go_on.set()
    driver.finished(1)
    driver.until_version(SHELF, len(story))
    driver.settle()
    kinds = [s.activity for s in driver.engine.take_steps() if s.activity is not Activity.DECODE]
    chunks = -(-len(question.prompt) // 8)
    assert chunks > 1
    turns = [Activity.INGEST, *[Activity.PREFILL, Activity.INGEST] * chunks]
    assert kinds[: len(turns)] == turns


def test_frames_that_nobody_waits_for_keep_to_their_share(
    make_driver: MakeDriver, story: Items
) -> None:
    driver = make_driver(chunk_tokens=8, ingest_share=0.01)
    kinds = [activity for activity, _ in steps_beside_an_answer(driver, story, 0)]
    decoding = kinds[: len(kinds) - kinds[::-1].index(Activity.DECODE.value)]
    assert decoding.count(Activity.INGEST.value) <= 1 + len(decoding) // 4


def test_hurrying_what_is_done_or_gone_changes_nothing(
    make_driver: MakeDriver, story: Items
) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    driver.submit(HurryTrunk(TABLE, 2), HurryTrunk(SHELF, 1), DropTrunk(SHELF))
    driver.append(TABLE, story, first=3, last=3)
    driver.until_type(VersionComputed)
    status = driver.settle()
    assert status.ingest_tokens == n_tokens(story, 3) and status.prefill_tokens == 0
    assert not driver.engine._work.trunks._awaited
