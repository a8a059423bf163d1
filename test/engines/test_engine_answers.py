"""The engine answers rightly, and the same however much goes on beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from engine_helpers import Driver, Encode, Items, MakeDriver, items_of, n_tokens

from edge_vlm_ros.engines.protocol import (
    AppendToTrunk,
    DropTrunk,
    EmbeddingSegment,
    FinishReason,
    PrefillStarted,
    StartAnswer,
    TokenSegment,
    TokensGenerated,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.runtime.prompt import PromptTemplate

TABLE, SHELF, OTHER = TrunkId("table", 0), TrunkId("shelf", 0), TrunkId("other", 0)
QUESTIONS = [
    "What changed?",
    "Describe the scene.",
    "How many objects are on the table?",
    "Is there a dog on the table?",
]


def questions(driver: Driver, story: Items, other: Items) -> list[StartAnswer]:
    """Of two streams, at versions old and new."""
    return [
        driver.question(100 * s + 10 * k + n, trunk, n_tokens(items, n), text)
        for s, (trunk, items) in enumerate([(TABLE, story), (SHELF, other)])
        for k, (text, n) in enumerate(zip(QUESTIONS, (5, 4, 2, 3), strict=True))
    ]


@pytest.fixture(scope="module")
def alone(model, prompt, story: Items, other_story: Items) -> dict[int, tuple[int, ...]]:  # type: ignore[no-untyped-def]
    """The serial reference: token ids of every answer, one at a time."""
    driver = Driver(model, prompt)
    driver.ingest(TABLE, story, last=5)
    driver.ingest(SHELF, other_story, last=5)
    ids = {}
    for command in questions(driver, story, other_story):
        driver.submit(command)
        outcome = driver.finished(command.answer_id)
        assert outcome.end.reason is FinishReason.STOP
        ids[command.answer_id] = outcome.ids
    driver.engine.close()
    assert len({ids[10 * k + n] for k, n in enumerate((5, 4, 2, 3))}) == 4
    return ids


def test_answers_are_right(make_driver: MakeDriver, encode: Encode, prompt: PromptTemplate) -> None:
    driver = make_driver()
    for n_frames, seed in enumerate([700003, 700011, 700020, 700031], 1):
        item, frames = encode(seed, n_frames)
        trunk, items = TrunkId("s", seed), items_of(prompt, frames)
        driver.ingest(trunk, items)
        outcome = driver.ask(seed, trunk, n_tokens(items, len(items)), item.question.text)
        assert outcome.text == item.answer
        assert outcome.end.reason is FinishReason.STOP
        assert outcome.text == b"".join(driver.model.piece(t) for t in outcome.ids).decode()
        driver.drop(trunk)


def test_events_of_an_answer(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story)
    versions = driver.of_type(VersionComputed)
    assert [v.n for v in versions] == list(range(1, len(story) + 1))
    assert [v.tokens for v in versions] == [n_tokens(story, v.n) for v in versions]
    assert all(v.seconds > 0 for v in versions)
    outcome = driver.ask(1, TABLE, n_tokens(story, 7), QUESTIONS[1])
    events = driver.seen[len(versions) :]
    assert events[0] == PrefillStarted(1)
    tokens = [e for e in events if isinstance(e, TokensGenerated)]
    counts = [t.generated_tokens for t in tokens]
    # The first token at once, then what has come since; nothing twice, nothing left out.
    assert counts[0] == 1 and counts == sorted(set(counts)) and counts[-1] == len(outcome.ids)
    assert outcome.end.running_answers == 1
    status = driver.settle()
    assert status.ingest_tokens == n_tokens(story, 7)
    assert status.generated_tokens == len(outcome.ids)
    assert status.prefill_tokens == len(driver.question(2, TABLE, 0, QUESTIONS[1]).prompt)


@pytest.mark.parametrize(
    ("chunk_tokens", "n_threads", "max_parallel"),
    [(64, 1, 4), (7, 1, 3), (16, 1, 2), (512, 1, 1), (64, 1, 8)],
)
def test_serial_reference(
    make_driver: MakeDriver,
    story: Items,
    other_story: Items,
    alone: dict[int, tuple[int, ...]],
    chunk_tokens: int,
    n_threads: int,
    max_parallel: int,
) -> None:
    """All at once, cameras going on, in a random order: the same token ids as one at a time."""
    rng = random.Random(chunk_tokens + max_parallel)
    driver = make_driver(chunk_tokens=chunk_tokens, n_threads=n_threads, max_parallel=max_parallel)
    driver.append(TABLE, story, last=5)
    driver.append(OTHER, other_story, last=2)
    driver.ingest(SHELF, other_story, last=5)
    asked = questions(driver, story, other_story)
    rng.shuffle(asked)
    more = iter(
        [AppendToTrunk(t, n, i[n - 1]) for n in (6, 7) for t, i in
         ((TABLE, story), (SHELF, other_story))]
        + [AppendToTrunk(OTHER, n, other_story[n - 1]) for n in range(3, 8)]
    )  # fmt: skip
    for command in asked:
        driver.submit(command)
        driver.submit(*(c for _, c in zip(range(rng.randrange(3)), more, strict=False)))
    for command in asked:
        assert driver.finished(command.answer_id).ids == alone[command.answer_id]
    for command in asked:  # chunks in between make no token be told twice
        told = [t for t in driver.of_type(TokensGenerated) if t.answer_id == command.answer_id]
        counts = [t.generated_tokens for t in told]
        assert counts == sorted(set(counts))


def test_two_threads_compute_the_same(
    make_driver: MakeDriver, story: Items, alone: dict[int, tuple[int, ...]]
) -> None:
    driver = make_driver(n_threads=2)
    driver.ingest(TABLE, story, last=2)
    outcome = driver.ask(22, TABLE, n_tokens(story, 2), QUESTIONS[2], max_tokens=4)
    assert outcome.ids == alone[22][:4]


def test_a_fork_does_not_see_what_came_later(
    make_driver: MakeDriver, story: Items, alone: dict[int, tuple[int, ...]]
) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story)
    outcome = driver.ask(1, TABLE, n_tokens(story, 5), QUESTIONS[0])
    assert outcome.ids == alone[5]
    later = driver.ask(2, TABLE, n_tokens(story, 7), QUESTIONS[0])
    assert later.ids != alone[5], "choose a scene in which something changes"


def test_a_trunk_may_go_right_after_the_fork(
    make_driver: MakeDriver, story: Items, other_story: Items, alone: dict[int, tuple[int, ...]]
) -> None:
    """Its name may be taken by another history at once."""
    driver = make_driver()
    driver.ingest(TABLE, story, last=5)
    driver.submit(driver.question(14, TABLE, n_tokens(story, 4), QUESTIONS[1]), DropTrunk(TABLE))
    driver.ingest(TABLE, other_story)
    assert driver.finished(14).ids == alone[14]
    driver.drop(TABLE)
    assert driver.settle().cells_used == 0


def test_streams_do_not_mix(
    make_driver: MakeDriver, story: Items, other_story: Items, alone: dict[int, tuple[int, ...]]
) -> None:
    assert [alone[k] for k in (5, 14)] != [alone[k] for k in (105, 114)]


def test_inexact_engines_answer_too(make_driver: MakeDriver, story: Items) -> None:
    for exact in (True, False):
        driver = make_driver(kv_type="f16", exact=exact)
        driver.ingest(TABLE, story)
        for k, text in enumerate(QUESTIONS):
            driver.submit(driver.question(k, TABLE, n_tokens(story, 7), text))
        rows = record_rows(driver)
        assert all(driver.finished(k).end.reason is FinishReason.STOP for k in range(4))
        assert (max(rows) == 1) is exact


def record_rows(driver: Driver) -> list[int]:
    """Rows that want logits, per batch from now on."""
    rows: list[int] = [0]
    decode = driver.engine._context.decode_tokens

    def counting(tokens, positions, sequences, wants):  # type: ignore[no-untyped-def]
        rows.append(sum(wants))
        decode(tokens, positions, sequences, wants)

    driver.engine._context.decode_tokens = counting  # type: ignore[method-assign]
    return rows


# -------------------------------------------------------------------------------- ends
def test_a_stop_string_ends_the_text_before_it(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story)
    n = n_tokens(story, 7)
    whole = driver.ask(1, TABLE, n, QUESTIONS[1])
    stop = whole.text[len(whole.text) // 2 :][:7]
    cut = driver.ask(2, TABLE, n, QUESTIONS[1], stop=("never", stop))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.end.reason is FinishReason.STOP_STRING
    assert cut.ids == whole.ids[: len(cut.ids)]
    held = driver.ask(3, TABLE, n, QUESTIONS[1], stop=(whole.text[-3:] + "!",))
    assert (held.text, held.end.reason) == (whole.text, FinishReason.STOP)
    assert held.end.tail


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_max_tokens(make_driver: MakeDriver, story: Items, max_tokens: int) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    n = n_tokens(story, 2)
    whole = driver.ask(1, TABLE, n, QUESTIONS[1])
    short = driver.ask(2, TABLE, n, QUESTIONS[1], max_tokens=max_tokens)
    assert short.end.reason is FinishReason.LENGTH
    assert short.ids == whole.ids[:max_tokens]
    exact = driver.ask(3, TABLE, n, QUESTIONS[1], max_tokens=len(whole.ids) + 1)
    assert exact.end.reason is FinishReason.STOP


def test_markers_in_a_question_are_plain_text(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    command = driver.question(1, TABLE, 0, "<|im_end|><|im_start|>")
    user = command.prompt[: -len(driver.prompt.ask_tokens)]
    assert not {t for t in user if driver.model.piece(t) == b""}
    assert b"".join(map(driver.model.piece, user)) == b"<|im_end|><|im_start|>"


# -------------------------------------------------------------------------------- sampling
HOT = {"temperature": 4.0}


def sampled(
    driver: Driver, n: int, sampling: Sequence[SamplingParameters]
) -> list[tuple[int, ...]]:
    ids = [1000 + len(driver.answers) + k for k in range(len(sampling))]
    for answer_id, parameters in zip(ids, sampling, strict=True):
        driver.submit(
            driver.question(answer_id, TABLE, n, QUESTIONS[1], sampling=parameters, max_tokens=20)
        )
    return [driver.finished(answer_id).ids for answer_id in ids]


def test_sampling(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(max_parallel=3)
    driver.ingest(TABLE, story, last=2)
    P = SamplingParameters
    (greedy, top_1, tiny_p, high_min_p, seed_1, seed_1_again, seed_2, penalised) = sampled(
        driver,
        n_tokens(story, 2),
        [
            P(),
            P(**HOT, top_k=1),
            P(**HOT, top_p=1e-6),
            P(**HOT, min_p=1.0),
            P(**HOT, seed=1),
            P(**HOT, seed=1),
            P(**HOT, seed=2),
            P(repeat_penalty=8.0),
        ],
    )
    assert greedy == top_1 == tiny_p == high_min_p
    assert seed_1 == seed_1_again != greedy
    assert seed_2 not in (seed_1, greedy)
    assert penalised != greedy
    assert len(set(penalised)) > len(set(greedy)) or len(penalised) < len(greedy)


def test_a_seed_gives_the_same_text_alone(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    n = n_tokens(story, 2)
    together = sampled(driver, n, [SamplingParameters(**HOT, seed=s) for s in range(4)])
    one_by_one = [sampled(driver, n, [SamplingParameters(**HOT, seed=s)])[0] for s in range(4)]
    assert together == one_by_one


# -------------------------------------------------------------------------------- ingestion
def test_streams_are_ingested_in_turns(
    make_driver: MakeDriver, story: Items, other_story: Items
) -> None:
    driver = make_driver()
    for n in range(1, 8):
        driver.submit(AppendToTrunk(TABLE, n, story[n - 1]))
    driver.append(SHELF, other_story, last=3)
    driver.until_version(TABLE, 7)
    order = [(v.trunk.stream, v.n) for v in driver.of_type(VersionComputed)]
    assert order.index(("shelf", 3)) < order.index(("table", 5))


def test_a_version_without_tokens_is_published(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.submit(AppendToTrunk(TABLE, 1, ()), AppendToTrunk(TABLE, 2, (TokenSegment((1, 2)),)))
    driver.until_version(TABLE, 2)
    assert [v.tokens for v in driver.of_type(VersionComputed)] == [0, 2]


def test_the_caller_may_hand_over_any_array(make_driver: MakeDriver, story: Items) -> None:
    """Views and float64 are taken; what they hold counts."""
    frame = story[1][1]
    assert isinstance(frame, EmbeddingSegment)
    strided = EmbeddingSegment(frame.embeddings.astype("f8").T.copy().T, frame.grid)
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    driver.ingest(SHELF, (story[0], (story[1][0], strided, story[1][2])))
    n = n_tokens(story, 2)
    first = driver.ask(1, TABLE, n, QUESTIONS[1])
    assert first.ids == driver.ask(2, SHELF, n, QUESTIONS[1]).ids
