"""A native failure ends the command it happened in, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_helpers import Driver, Items, MakeDriver, assert_nothing_is_left, hold, n_tokens

from edge_vlm_ros.engines.errors import ComputeError, DecodeAbortedError, DecodeError, NoCellsError
from edge_vlm_ros.engines.protocol import (
    AppendFailed,
    AppendToTrunk,
    EmbeddingSegment,
    FinishReason,
    TrunkId,
    VersionComputed,
)

TABLE, SHELF = TrunkId("table", 0), TrunkId("shelf", 0)
QUESTIONS = ["Describe the scene.", "What changed?", "How many objects are on the table?"]
ERRORS = [NoCellsError, ComputeError, DecodeAbortedError]


def fail_once(
    driver: Driver, method: str, error: type[DecodeError], when: Callable[..., bool]
) -> list[int]:
    """The first call of a context's method that ``when`` is true of raises, after computing when
    the error says that part of it may be in the cache."""
    context = driver.engine._context
    original = getattr(context, method)
    failures: list[int] = []

    def failing(*args: object) -> None:
        if failures or not when(*args):
            original(*args)
            return
        failures.append(1)
        if error is not NoCellsError:
            original(*args)
        raise error("injected")

    setattr(context, method, failing)
    return failures


def alone(driver: Driver, story: Items) -> list[tuple[int, ...]]:
    n = n_tokens(story, 4)
    return [driver.ask(900 + k, TABLE, n, text).ids for k, text in enumerate(QUESTIONS)]


def together(driver: Driver, story: Items) -> list[tuple[int, ...]]:
    """The answers' ids; all are in flight at once."""
    n = n_tokens(story, 4)
    driver.submit(*(driver.question(k, TABLE, n, text) for k, text in enumerate(QUESTIONS)))
    return [driver.finished(k).ids for k in range(len(QUESTIONS))]


@pytest.mark.parametrize("error", ERRORS)
def test_a_question_that_cannot_be_computed(
    make_driver: MakeDriver, story: Items, error: type[DecodeError]
) -> None:
    driver = make_driver(chunk_tokens=8)
    driver.ingest(TABLE, story, last=4)
    expected = alone(driver, story)
    second = driver.question(1, TABLE, 0, QUESTIONS[1]).prompt
    failures = fail_once(
        driver, "decode_tokens", error, lambda tokens, *_: tuple(tokens) == second[:8]
    )
    ids = together(driver, story)
    assert failures
    assert driver.answers[1].end.reason is FinishReason.ERROR
    assert driver.answers[1].end.error == "injected"
    assert (ids[0], ids[1], ids[2]) == (expected[0], (), expected[2])
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)
    assert driver.ask(5, TABLE, n_tokens(story, 4), QUESTIONS[1]).ids == expected[1]


@pytest.mark.parametrize("error", ERRORS)
def test_a_shared_decode_step_that_fails_is_done_one_by_one(
    make_driver: MakeDriver, story: Items, error: type[DecodeError]
) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=4)
    expected = alone(driver, story)
    before = driver.settle().generated_tokens
    failures = fail_once(driver, "decode_tokens", error, lambda _t, _p, _s, wants: sum(wants) == 3)
    assert together(driver, story) == expected
    assert failures
    assert driver.settle().generated_tokens - before == sum(map(len, expected))
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)


def test_one_bad_row_ends_its_answer_only(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=4)
    expected = alone(driver, story)
    context = driver.engine._context
    original = context.decode_tokens
    bad: list[int] = []

    def failing(tokens, positions, sequences, wants):  # type: ignore[no-untyped-def]
        if sum(wants) == 3 and not bad:
            bad.append(sequences[1])
        if bad and bad[0] in sequences and all(wants):
            raise ComputeError("a bad row")
        original(tokens, positions, sequences, wants)

    context.decode_tokens = failing  # type: ignore[method-assign]
    together(driver, story)
    ends = [driver.answers[k].end for k in range(3)]
    assert sorted(e.reason.value for e in ends) == ["error", "stop", "stop"]
    for end, whole in zip(ends, expected, strict=True):
        if end.reason is FinishReason.ERROR:
            assert end.token_ids == whole[: len(end.token_ids)] != ()
        else:
            assert end.token_ids == whole
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("method", ["decode_tokens", "decode_embeddings"])
def test_a_frame_that_cannot_be_computed(
    make_driver: MakeDriver, story: Items, error: type[DecodeError], method: str
) -> None:
    """The trunk is as it was; sent again, the same is computed."""
    driver = make_driver(chunk_tokens=20)
    driver.ingest(SHELF, story, last=4)
    driver.ingest(TABLE, story, last=2)
    n = n_tokens(story, 4)
    expected = driver.ask(1, SHELF, n, QUESTIONS[0]).ids

    def when(*args: object) -> bool:  # the suffix of the frame, or its second chunk
        if method == "decode_tokens":
            return args[1] == range(n_tokens(story, 3) - 2, n_tokens(story, 3))
        return args[1] == n_tokens(story, 2) + 1 + 17

    failures = fail_once(driver, method, error, when)
    driver.submit(driver.question(2, SHELF, n, QUESTIONS[0]))
    driver.append(TABLE, story, first=3, last=4)
    driver.append(SHELF, story, first=5, last=5)
    failed = [driver.until_type(AppendFailed) for _ in range(2)]
    assert failures
    assert [(f.trunk, f.n, f.error) for f in failed][0] == (TABLE, 3, "injected")
    assert [f.n for f in failed] == [3, 4]
    assert driver.finished(2).ids == expected
    driver.until_version(SHELF, 5)
    both = n_tokens(story, 2) + n_tokens(story, 5)
    assert_nothing_is_left(driver, cells=both, trunks=2)
    assert driver.ask(3, TABLE, n_tokens(story, 2), QUESTIONS[2]).end.error == ""
    driver.ingest(TABLE, story, first=3, last=4)
    assert driver.ask(4, TABLE, n, QUESTIONS[0]).ids == expected


def test_commands_sent_before_a_failure_was_known_leave_no_gap(
    make_driver: MakeDriver, story: Items
) -> None:
    """A frame must never be computed at the place of one that failed."""
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    entered, go_on = hold(driver, "trim")
    fail_once(driver, "decode_embeddings", ComputeError, lambda *_: True)
    driver.append(TABLE, story, first=3, last=3)
    assert entered.wait(60)  # failing, not yet told
    driver.append(TABLE, story, first=4, last=5)
    go_on.set()
    assert [driver.until_type(AppendFailed).n for _ in range(3)] == [3, 4, 5]
    # Told of three failures, a runtime may send everything three times.
    for _ in range(3):
        driver.append(TABLE, story, first=3, last=5)
    driver.until_version(TABLE, 5)
    assert [v.n for v in driver.of_type(VersionComputed)] == [1, 2, 3, 4, 5]
    assert_nothing_is_left(driver, cells=n_tokens(story, 5), trunks=1)
    driver.ingest(SHELF, story, last=5)
    n = n_tokens(story, 5)
    assert driver.ask(1, TABLE, n, QUESTIONS[1]).ids == driver.ask(2, SHELF, n, QUESTIONS[1]).ids


def test_embeddings_of_another_model_fail_their_command(
    make_driver: MakeDriver, story: Items
) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    frame = story[2][1]
    assert isinstance(frame, EmbeddingSegment)
    narrow = EmbeddingSegment(frame.embeddings[:, :128])
    driver.submit(AppendToTrunk(TABLE, 3, (story[2][0], narrow, story[2][2])))
    assert "128" in driver.until_type(AppendFailed).error
    driver.ingest(TABLE, story, first=3, last=4)
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)
