"""An answer is given up while it is being decoded, and goes on on another engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from engine_helpers import (
    Driver,
    Items,
    MakeDriver,
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
    go_on,
    hand_off,
    ready,
    record_rows,
)

from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AnswerHandedOff,
    Command,
    EndAnswer,
    FinishReason,
    HandOffAnswer,
    StartAnswer,
    TokensGenerated,
)
from edge_vlm_ros.engines.sampling import SamplingParameters

PENALISED = SamplingParameters(temperature=2.0, top_p=0.95, repeat_penalty=1.4, seed=3)


def at_step(driver: Driver, command: StartAnswer, k: int) -> Any:
    """Hold the engine before it computes what comes after ``k`` tokens of an answer."""
    place = command.start.tokens + len(command.prompt) + k - 1
    return hold(driver, "decode_tokens", lambda _tokens, places, *_: place in places)


def stopped_at(
    driver: Driver, command: StartAnswer, k: int, *then: Command
) -> AnswerHandedOff | AnswerFinished:
    """Begin an answer and say ``then`` when it has ``k`` tokens, which is carried out when it has
    one more; returns what becomes of it."""
    entered, go = at_step(driver, command, k)
    driver.submit(command)
    assert entered.wait(60)
    driver.submit(*then)
    go.set()
    event = driver.until(
        lambda e: (
            isinstance(e, AnswerHandedOff | AnswerFinished) and e.answer_id == command.answer_id
        )
    )
    assert isinstance(event, AnswerHandedOff | AnswerFinished)
    return event


def leave(driver: Driver, command: StartAnswer, k: int) -> AnswerHandedOff:
    """Have an answer given up when it has ``k + 1`` tokens."""
    event = stopped_at(driver, command, k, HandOffAnswer(command.answer_id))
    assert isinstance(event, AnswerHandedOff), event
    return event


def n_decoding(driver: Driver) -> int:
    return len(driver.engine._work.answers._decoding())


def told(driver: Driver, answer_id: int) -> tuple[int, ...]:
    return tuple(driver.answers[answer_id].told)


# -------------------------------------------------------------------------------- the same answer
@pytest.mark.parametrize("sampling", [SamplingParameters(), HOT, PENALISED])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_it_goes_on_as_if_it_had_stayed(
    make_driver: MakeDriver, story: Items, sampling: SamplingParameters, k: int
) -> None:
    driver, other = ready(make_driver, story), ready(make_driver, story, chunk_tokens=7)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION, sampling=sampling, max_tokens=24)
    assert len(whole.ids) > k + 2
    command = driver.question(2, TABLE, start, QUESTION, sampling=sampling, max_tokens=24)
    left = leave(driver, command, k)
    assert left.state is None
    assert told(driver, 2) == whole.ids[: k + 1]
    resumed = go_on(other, command, told(driver, 2), None)
    assert (resumed.ids, resumed.end.reason) == (whole.ids, whole.end.reason)
    assert tuple(resumed.told) == whole.ids[k + 1 :]
    assert "".join(driver.answers[2].deltas) + resumed.text == whole.text
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)
    assert_nothing_is_left(other, cells=start.tokens, trunks=1)


def test_each_engine_computes_every_token_once(make_driver: MakeDriver, story: Items) -> None:
    """Nothing is exported: the second engine computes what the first one would have computed."""
    driver, other = ready(make_driver, story), ready(make_driver, story)
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION, sampling=HOT, max_tokens=24)
    rows = record_rows(driver)
    whole = driver.ask(2, TABLE, boundary(story, 4), QUESTION, sampling=HOT, max_tokens=24)
    alone, rows[:] = sum(rows), []
    leave(driver, command, 5)
    before, rows_there = other.settle(), record_rows(other)
    resumed = go_on(other, command, told(driver, 1), None)
    assert resumed.ids == whole.ids
    assert sum(rows) == len(command.prompt) + 5
    assert sum(rows_there) == alone
    after = other.settle()
    assert after.generated_tokens - before.generated_tokens == len(resumed.told)
    assert (driver.settle().exported_bytes, after.imported_bytes) == (0, 0)


def test_it_can_go_on_and_on(make_driver: MakeDriver, story: Items) -> None:
    """What was begun elsewhere can be given up like what was begun here, and come back."""
    engines = [ready(make_driver, story), ready(make_driver, story)]
    command = engines[0].question(
        1, TABLE, boundary(story, 4), QUESTION, sampling=PENALISED, max_tokens=24
    )
    whole = engines[0].ask(
        2, TABLE, boundary(story, 4), QUESTION, sampling=PENALISED, max_tokens=24
    )
    generated: tuple[int, ...] = ()
    text = ""
    for hop, k in enumerate((1, 4, 9)):
        driver = engines[hop % 2]
        leave(driver, command, k)
        generated += told(driver, 1)
        text += "".join(driver.answers.pop(1).deltas)
        assert generated == whole.ids[: k + 1]
        command = replace(command, generated=generated)
    resumed = go_on(engines[1], command, generated, None)
    assert (resumed.ids, text + resumed.text) == (whole.ids, whole.text)
    for driver in engines:
        assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)


@pytest.mark.parametrize("kv_type", ["q8_0", "f16"])
def test_others_of_the_batch_are_not_disturbed(
    make_driver: MakeDriver, story: Items, kv_type: str
) -> None:
    """Four at once; two of them leave at different moments. With an f16 cache they take turns."""
    driver, other = (ready(make_driver, story, kv_type=kv_type) for _ in "ab")
    start = boundary(story, 4)
    texts = ["What changed?", "How many objects are on the table?", "Is there a dog?"]
    expected = {
        k: driver.ask(100 + k, TABLE, start, text, sampling=HOT, max_tokens=20)
        for k, text in enumerate([QUESTION, *texts])
    }
    commands = [
        driver.question(k, TABLE, start, text, sampling=HOT, max_tokens=20)
        for k, text in enumerate([QUESTION, *texts])
    ]
    entered, go = hold(driver, "decode_tokens", lambda *_: n_decoding(driver) == 4)
    driver.submit(*commands)
    assert entered.wait(60)
    driver.submit(HandOffAnswer(0))
    later, go_later = hold(driver, "decode_tokens", lambda *_: n_decoding(driver) == 3)
    go.set()
    assert later.wait(60)
    assert not {0, 2} & {event.answer_id for event in driver.of_type(AnswerFinished)}
    driver.submit(HandOffAnswer(2))
    go_later.set()
    for k in (1, 3):
        outcome = driver.finished(k)
        assert (outcome.ids, outcome.text) == (expected[k].ids, expected[k].text)
        assert tuple(outcome.told) == expected[k].ids
    assert {event.answer_id for event in driver.of_type(AnswerHandedOff)} == {0, 2}
    assert all(len(told(driver, k)) > 1 for k in (0, 2))
    for k in (0, 2):
        resumed = go_on(other, commands[k], told(driver, k), None)
        assert resumed.ids == expected[k].ids
        assert "".join(driver.answers[k].deltas) + resumed.text == expected[k].text
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)
    assert_nothing_is_left(other, cells=start.tokens, trunks=1)


# -------------------------------------------------------------------------------- text
@pytest.mark.parametrize("k", [1, 3, 6])
def test_text_that_could_begin_a_stop_string_is_neither_lost_nor_repeated(
    make_driver: MakeDriver, story: Items, k: int
) -> None:
    driver, other = ready(make_driver, story), ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    assert len(whole.ids) > k + 2
    begun = b"".join(map(driver.model.piece, whole.ids[: k + 1])).decode()
    stop = (begun[-3:] + "never",)
    command = driver.question(2, TABLE, start, QUESTION, stop=stop)
    leave(driver, command, k)
    assert "".join(driver.answers[2].deltas) == begun[:-3]
    resumed = go_on(other, command, told(driver, 2), None)
    assert "".join(driver.answers[2].deltas) + resumed.text == whole.text
    assert resumed.ids == whole.ids


def test_a_stop_string_that_is_completed_elsewhere(make_driver: MakeDriver, story: Items) -> None:
    driver, other = ready(make_driver, story), ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    pieces = [driver.model.piece(token).decode() for token in whole.ids]
    begun = "".join(pieces[:4])
    command = driver.question(2, TABLE, start, QUESTION, stop=(begun[-2:] + pieces[4],))
    leave(driver, command, 3)
    resumed = go_on(other, command, told(driver, 2), None)
    assert (resumed.end.reason, resumed.ids) == (FinishReason.STOP_STRING, whole.ids[:5])
    assert "".join(driver.answers[2].deltas) + resumed.text == begun[:-2]


def test_half_a_character_is_neither_lost_nor_repeated(
    make_driver: MakeDriver, story: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are made to be the first or the second byte of a character, as rare ones are."""
    driver, other = ready(make_driver, story), ready(make_driver, story)
    monkeypatch.setattr(driver.model, "piece", lambda token: ("é".encode() * 2)[token % 2 :][:1])
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION, sampling=HOT, max_tokens=40)
    halves = [k for k, (a, b) in enumerate(pairwise(whole.ids), 1) if (a % 2, b % 2) == (0, 1)]
    k = next(k for k in halves if k >= 2)
    command = driver.question(2, TABLE, start, QUESTION, sampling=HOT, max_tokens=40)
    leave(driver, command, k - 1)
    before = "".join(driver.answers[2].deltas)
    resumed = go_on(other, command, told(driver, 2), None)
    assert resumed.ids == whole.ids
    assert before + resumed.text == whole.text
    assert whole.text[len(before)] == "é"


def test_tokens_that_were_not_told_yet_are_told_before_it_leaves(
    make_driver: MakeDriver, story: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vlm_ros.engines.branch.TELL_PERIOD_S", 1e9)
    driver = ready(make_driver, story)
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION)
    leave(driver, command, 6)
    counts = [event.generated_tokens for event in driver.of_type(TokensGenerated)]
    assert counts == [1, 7]
    assert type(driver.seen[-1]) is AnswerHandedOff


# -------------------------------------------------------------------------------- not now
def test_what_is_not_being_decoded_does_not_leave(make_driver: MakeDriver, story: Items) -> None:
    """Unknown, waiting, being prefilled, finished: they go on, and nothing is left behind."""
    driver = ready(make_driver, story, max_parallel=1, chunk_tokens=7)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    driver.submit(HandOffAnswer(1), HandOffAnswer(99))
    command = driver.question(2, TABLE, start, QUESTION)
    entered, go = hold(driver, "decode_tokens")  # the first chunk of its prompt
    driver.submit(command, replace(command, answer_id=3))
    assert entered.wait(60)
    driver.submit(HandOffAnswer(2), HandOffAnswer(3))
    go.set()
    assert driver.finished(2).ids == driver.finished(3).ids == whole.ids
    assert not driver.of_type(AnswerHandedOff)
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)


def test_what_is_on_its_way_does_not_leave(make_driver: MakeDriver, story: Items) -> None:
    """One that is to be imported goes on here, one that is to be exported keeps its state."""
    driver, other = ready(make_driver, story), ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    command = driver.question(2, TABLE, start, QUESTION)
    state = hand_off(driver, command).state
    first = told(driver, 2)
    entered, go = hold(other, "export_range")
    other.submit(*(replace(command, answer_id=k, prefill_only=True) for k in (7, 8)))
    assert entered.wait(60)
    other.submit(replace(command, generated=first, state=state))
    other.submit(*map(HandOffAnswer, (2, 7, 8)))
    go.set()
    assert other.finished(2).ids == whole.ids
    left = other.of_type(AnswerHandedOff)
    assert [event.answer_id for event in left] == [7, 8]
    assert state is not None
    for event in left:
        assert event.state is not None
        assert_same_kv(event.state, state)
    assert_nothing_is_left(other, cells=start.tokens, trunks=1)


def test_what_ends_with_the_step_that_is_being_done(make_driver: MakeDriver, story: Items) -> None:
    driver = ready(make_driver, story)
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION, max_tokens=4)
    end = stopped_at(driver, command, 3, HandOffAnswer(1))
    assert isinstance(end, AnswerFinished) and end.reason is FinishReason.LENGTH
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)
    assert not driver.of_type(AnswerHandedOff)


# -------------------------------------------------------------------------------- in between
def test_saying_it_twice_does_no_harm(make_driver: MakeDriver, story: Items) -> None:
    driver, other = ready(make_driver, story), ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    command = driver.question(2, TABLE, start, QUESTION)
    left = stopped_at(driver, command, 3, HandOffAnswer(2), HandOffAnswer(2))
    assert isinstance(left, AnswerHandedOff)
    driver.submit(HandOffAnswer(2))
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)
    assert len(driver.of_type(AnswerHandedOff)) == 1
    assert told(driver, 2) == whole.ids[:4]
    assert go_on(other, command, told(driver, 2), None).ids == whole.ids


def test_it_is_ended_first(make_driver: MakeDriver, story: Items) -> None:
    driver = ready(make_driver, story)
    start = boundary(story, 4)
    whole = driver.ask(1, TABLE, start, QUESTION)
    command = driver.question(2, TABLE, start, QUESTION)
    cancel = EndAnswer(2, FinishReason.CANCELLED)
    end = stopped_at(driver, command, 3, cancel, HandOffAnswer(2))
    assert isinstance(end, AnswerFinished)
    assert (end.reason, end.token_ids) == (FinishReason.CANCELLED, whole.ids[:4])
    assert_nothing_is_left(driver, cells=start.tokens, trunks=1)
    assert not driver.of_type(AnswerHandedOff)


def test_ending_what_has_left_is_ignored(make_driver: MakeDriver, story: Items) -> None:
    driver = ready(make_driver, story)
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION)
    left = stopped_at(driver, command, 3, HandOffAnswer(1), EndAnswer(1, FinishReason.CANCELLED))
    assert isinstance(left, AnswerHandedOff)
    driver.cancel(1)
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)
    assert not driver.of_type(AnswerFinished)
    assert driver.ask(1, TABLE, boundary(story, 4), QUESTION).end.error == ""  # the id is free


def ends(events: Sequence[object], answer_id: int) -> int:
    return sum(isinstance(e, AnswerFinished) and e.answer_id == answer_id for e in events)


def test_a_place_is_free_when_it_has_left(make_driver: MakeDriver, story: Items) -> None:
    """The one that waited behind it begins, in its cells."""
    driver = ready(make_driver, story, max_parallel=1)
    command = driver.question(1, TABLE, boundary(story, 4), QUESTION)
    entered, go = at_step(driver, command, 3)
    driver.submit(command, replace(command, answer_id=2))
    assert entered.wait(60)
    driver.submit(HandOffAnswer(1))
    go.set()
    assert driver.finished(2).end.error == ""
    assert ends(driver.seen, 1) == 0 and len(driver.of_type(AnswerHandedOff)) == 1
    assert_nothing_is_left(driver, cells=n_tokens(story, 4), trunks=1)
