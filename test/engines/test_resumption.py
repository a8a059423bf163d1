"""An answer that was begun elsewhere goes on with the same tokens: nothing twice, nothing lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine_helpers import (
    Items,
    MakeDriver,
    Outcome,
    assert_nothing_is_left,
    boundary,
    hold,
    n_tokens,
)
from transfer_helpers import (
    HOT,
    QUESTION,
    TABLE,
    assert_same_kv,
    boundaries,
    export,
    go_on,
    hand_off,
    ready,
    record_rows,
    state_after,
)

from edge_vlm_ros.engines.branch import suffix_boundary
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AnswerHandedOff,
    FinishReason,
    PrefillStarted,
    TokensGenerated,
)
from edge_vlm_ros.engines.sampling import SamplingParameters


def assert_continues(whole: Outcome, resumed: Outcome, k: int) -> None:
    """The resumed answer ends as the whole one; it tells what came after its first ``k`` tokens."""
    assert resumed.ids == whole.ids
    assert tuple(resumed.told) == whole.ids[k:]
    assert resumed.end.reason is whole.end.reason


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(),
        HOT,
        SamplingParameters(temperature=2.0, top_p=0.95, min_p=0.001, repeat_penalty=1.4, seed=3),
        SamplingParameters(repeat_penalty=8.0),
    ],
)
def test_resumed_answers_are_the_uninterrupted_ones(
    make_driver: MakeDriver, story: Items, sampling: SamplingParameters, with_state: bool
) -> None:
    """After any number of tokens, with the state or without; text, tokens and reason agree."""
    driver, other = ready(make_driver, story), ready(make_driver, story, chunk_tokens=7)
    start = boundary(story, 4)
    command = driver.question(1, TABLE, start, QUESTION, sampling=sampling, max_tokens=24)
    driver.submit(command)
    whole = driver.finished(1)
    assert len(whole.ids) > 5
    for k in sorted({1, 2, 5, len(whole.ids) // 2, len(whole.ids) - 1}):
        generated = whole.ids[:k]
        state = state_after(make_driver, story, command, generated) if with_state else None
        resumed = go_on(other, replace(command, answer_id=100 + k), generated, state)
        assert_continues(whole, resumed, k)
        before = b"".join(map(driver.model.piece, generated)).decode()
        assert before + resumed.text == whole.text
    assert_nothing_is_left(other, cells=n_tokens(story, 4), trunks=1)


def test_an_engine_that_is_exact_by_equal_shapes(make_driver: MakeDriver, story: Items) -> None:
    """With an f16 cache the shapes of batches matter: what was generated elsewhere is computed
    token by token, as it would have been here."""
    settings: dict[str, Any] = {"kv_type": "f16", "chunk_tokens": 7}
    driver, other = (ready(make_driver, story, **settings) for _ in "ab")
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION, sampling=HOT, max_tokens=24)
    driver.submit(command)
    whole = driver.finished(1)
    rows = record_rows(other)
    for k in (1, 6, 11):
        resumed = go_on(other, replace(command, answer_id=100 + k), whole.ids[:k], None)
        assert_continues(whole, resumed, k)
    assert max(rows) <= 7 and set(rows) <= {1, 2, 7, len(command.prompt) % 7}


def test_a_state_spares_all_prefill(make_driver: MakeDriver, story: Items) -> None:
    driver, other = ready(make_driver, story), ready(make_driver, story)
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION)
    left = hand_off(driver, command)
    before = other.settle().prefill_tokens
    go_on(other, command, driver.answers[1].told, left.state)
    status = other.settle()
    assert status.prefill_tokens == before
    assert status.imported_bytes == left.state.n_bytes
    assert status.generated_tokens == len(other.answers[1].ids) - 1


def test_a_handoff(make_driver: MakeDriver, story: Items) -> None:
    """The first token is told, then the branch is given up: its cells are free at once."""
    driver = ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    command = driver.question(2, TABLE, start, QUESTION)
    seen = len(driver.seen)
    left = hand_off(driver, command)
    assert [type(e) for e in driver.seen[seen:]] == [
        PrefillStarted, TokensGenerated, AnswerHandedOff
    ]  # fmt: skip
    assert driver.answers[2].told == list(whole.ids[:1])
    assert left.seconds > 0
    stop = suffix_boundary(start, command.prompt)
    header = left.state.header
    assert (header.start_tokens, header.stop_tokens) == (start.tokens, stop.tokens)
    assert (header.start_identity, header.stop_identity) == (start.identity, stop.identity)
    assert header.layout == driver.engine.layout
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)
    assert_same_kv(left.state, state_after(make_driver, story, command, whole.ids[:1]))
    assert not [e for e in driver.of_type(AnswerFinished) if e.answer_id == 2]


@pytest.mark.parametrize("max_tokens", [1, 30])
def test_a_handoff_that_ends_with_its_first_token(
    make_driver: MakeDriver, story: Items, max_tokens: int
) -> None:
    driver = ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    stop = () if max_tokens == 1 else (driver.model.piece(whole.ids[0]).decode(),)
    command = driver.question(2, TABLE, start, QUESTION, max_tokens=max_tokens, stop=stop)
    driver.submit(replace(command, prefill_only=True))
    outcome = driver.finished(2)
    assert outcome.ids == whole.ids[:1]
    expected = FinishReason.LENGTH if max_tokens == 1 else FinishReason.STOP_STRING
    assert outcome.end.reason is expected
    assert not driver.of_type(AnswerHandedOff)
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)


def test_several_handoffs_and_answers_together(make_driver: MakeDriver, story: Items) -> None:
    """Prefill here, decode there, four at once: as if each had been alone in one place."""
    driver, other = ready(make_driver, story), ready(make_driver, story)
    start = boundary(story, 4)
    texts = [QUESTION, "What changed?", "How many objects are on the table?", "Is there a dog?"]
    commands = [driver.question(k, TABLE, start, text) for k, text in enumerate(texts)]
    expected = [driver.ask(100 + k, TABLE, start, text).ids for k, text in enumerate(texts)]
    for command in commands:
        driver.submit(replace(command, prefill_only=True))
    for _ in texts:
        left = driver.until_type(AnswerHandedOff)
        command = commands[left.answer_id]
        told = tuple(driver.answers[left.answer_id].told)
        other.submit(replace(command, generated=told, state=left.state))
    assert [other.finished(k).ids for k in range(4)] == expected
    for k in range(4):
        told = driver.answers[k].told + other.answers[k].told
        assert tuple(told) == expected[k]
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)
    assert_nothing_is_left(other, cells=start.tokens, trunks=1)


# -------------------------------------------------------------------------------- text
@pytest.mark.parametrize("k", [1, 3, 6])
def test_text_held_back_is_neither_lost_nor_repeated(
    make_driver: MakeDriver, story: Items, k: int
) -> None:
    """The first tokens could be the beginning of a stop string, here and there."""
    driver, other = ready(make_driver, story), ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    begun = b"".join(map(driver.model.piece, whole.ids[:k])).decode()
    stop = (begun[-4:] + whole.text[len(begun) :][:3] + "never",)
    command = driver.question(2, TABLE, start, QUESTION, stop=stop)
    entered, go = hold(driver, "decode_tokens", lambda _t, p, *_: p[0] == start.tokens
                       + len(command.prompt) + k - 1)  # fmt: skip
    driver.submit(command)
    if len(whole.ids) > k:
        assert entered.wait(60)
        driver.cancel(2)
        go.set()
    cut = driver.finished(2)
    told = "".join(cut.deltas)
    generated = tuple(cut.told)
    assert len(generated) == k + 1
    resumed = go_on(other, command, generated, None)
    assert told + resumed.text == whole.text
    assert cut.end.tail != "" or not told.endswith(begun)


def test_a_stop_string_across_the_seam(make_driver: MakeDriver, story: Items) -> None:
    driver = ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    pieces = [driver.model.piece(t).decode() for t in whole.ids]
    k = 4
    begun = "".join(pieces[:k])
    stop = (begun[-2:] + pieces[k],)
    command = driver.question(2, TABLE, start, QUESTION, stop=stop)
    resumed = go_on(driver, command, whole.ids[:k], None)
    assert resumed.end.reason is FinishReason.STOP_STRING
    assert resumed.ids == whole.ids[: k + 1]
    assert resumed.text == ""  # what came before the stop string has been told where it began


# -------------------------------------------------------------------------------- ends at once
def test_what_was_complete_already_ends_at_once(make_driver: MakeDriver, story: Items) -> None:
    driver = ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    text = b"".join(map(driver.model.piece, whole.ids[:6])).decode()
    before = driver.settle()
    full = driver.question(2, TABLE, start, QUESTION, max_tokens=6, stop=(text[-3:] + "x",))
    length = go_on(driver, full, whole.ids[:6], None)
    assert (length.end.reason, length.ids) == (FinishReason.LENGTH, whole.ids[:6])
    assert (length.told, length.end.tail) == ([], text[-3:])  # what had been held back
    stopped = driver.question(3, TABLE, start, QUESTION, stop=(text[-3:],))
    stop = go_on(driver, stopped, whole.ids[:6], None)
    assert (stop.end.reason, stop.text) == (FinishReason.STOP_STRING, "")
    after = driver.settle()
    assert (after.prefill_tokens, after.generated_tokens) == (
        before.prefill_tokens,
        before.generated_tokens,
    )
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)


def test_max_tokens_counts_all_tokens(make_driver: MakeDriver, story: Items) -> None:
    driver = ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    command = driver.question(2, TABLE, start, QUESTION, max_tokens=6)
    resumed = go_on(driver, command, whole.ids[:4], None)
    assert (resumed.ids, resumed.end.reason) == (whole.ids[:6], FinishReason.LENGTH)
    counts = [e.generated_tokens for e in driver.of_type(TokensGenerated) if e.answer_id == 2]
    assert counts[0] >= 5 and counts[-1] == 6


def test_a_resumed_answer_takes_the_cells_of_a_whole_one(
    make_driver: MakeDriver, story: Items
) -> None:
    """Promised when it starts, with its state or without."""
    driver = ready(make_driver, story)
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION, max_tokens=30)
    left = hand_off(driver, command)
    first = tuple(driver.answers[1].told)
    for answer_id, state in [(2, left.state), (3, None)]:
        entered, go = hold(driver, "decode_tokens")
        driver.submit(replace(command, answer_id=answer_id, generated=first, state=state))
        assert entered.wait(60)
        ledger = driver.engine._core.ledger
        assert ledger.answers == len(command.prompt) + 29
        go.set()
        assert driver.finished(answer_id).end.error == ""
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)


# -------------------------------------------------------------------------------- refusals
def test_a_state_that_does_not_fit_ends_that_answer(make_driver: MakeDriver, story: Items) -> None:
    driver = ready(make_driver, story)
    start = boundary(story, 4)
    command = driver.question(1, TABLE, start, QUESTION)
    other = driver.question(1, TABLE, start, "What changed just now?")
    left = hand_off(driver, command)
    first = tuple(driver.answers[1].told)
    same_length = replace(command, prompt=(*command.prompt[:-1], command.prompt[0]))
    (wrong,) = export(driver, TABLE, boundaries(story, 3, 4))
    for k, (changed, generated, reason) in enumerate(
        [
            (replace(command, state=left.state), (), "nothing to go on from"),
            (replace(command, state=left.state), (*first, 5), "cells"),
            (replace(other, state=left.state), first, "cells"),
            (replace(same_length, state=left.state), first, "another history"),
            (replace(command, state=wrong), first, "cells"),
        ]
    ):
        driver.submit(replace(changed, answer_id=50 + k, generated=generated))
        end = driver.finished(50 + k).end
        assert end.reason is FinishReason.ERROR and reason in end.error, (k, end)
        assert end.token_ids == generated
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)
    assert go_on(driver, replace(command, answer_id=60), first, left.state).end.error == ""


@pytest.mark.parametrize("method", ["import_range", "export_range"])
def test_ends_in_the_middle_of_a_handoff(
    make_driver: MakeDriver, story: Items, method: str
) -> None:
    """Cancelled while another transfer keeps the engine busy: nothing is left, nothing is told."""
    driver = ready(make_driver, story)
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION)
    left = hand_off(driver, command)
    first = tuple(driver.answers[1].told)
    resumed = method == "import_range"
    entered, go = hold(driver, method)
    for k in (2, 3):
        if resumed:
            driver.submit(replace(command, answer_id=k, generated=first, state=left.state))
        else:
            driver.submit(replace(command, answer_id=k, prefill_only=True))
    assert entered.wait(60)
    driver.cancel(3)
    go.set()
    assert driver.finished(3).end.reason is FinishReason.CANCELLED
    if resumed:
        assert driver.finished(2).end.error == ""
    else:
        assert [e.answer_id for e in driver.of_type(AnswerHandedOff)] == [1, 2]
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)
