"""Moves KV between two engines, whatever their devices, and compares it bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from engine_helpers import Driver, Items, MakeDriver, Outcome, boundary

from edge_vlm_ros.engines.branch import suffix_boundary
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AnswerHandedOff,
    AppendFailed,
    AppendToTrunk,
    Boundary,
    ExportFailed,
    ExportRange,
    ImportIntoTrunk,
    Origin,
    RangeExported,
    StartAnswer,
    TokenSegment,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.engines.snapshot import Snapshot
from edge_vlm_ros.engines.state_blob import parse_state_blob

ROOT = Boundary(0, 0, bytes(32))
QUESTION = "Describe the scene."
TABLE = TrunkId("table", 0)
HOT = SamplingParameters(temperature=3.0, top_k=40, seed=11)


def boundaries(items: Items, *versions: int) -> tuple[Boundary, ...]:
    """The ends of these versions; 0 is the beginning of all histories."""
    return tuple(boundary(items, n) if n else ROOT for n in versions)


# -------------------------------------------------------------------------------- commands
def export(
    driver: Driver, trunk: TrunkId, ends: Sequence[Boundary], request_id: int = 1
) -> tuple[Snapshot, ...]:
    """The snapshots between neighbouring boundaries of a trunk."""
    driver.submit(ExportRange(request_id, trunk, tuple(ends)))
    event = driver.until(lambda e: isinstance(e, (RangeExported, ExportFailed)))
    assert isinstance(event, RangeExported), event
    assert event.request_id == request_id and event.seconds > 0
    return event.snapshots


def import_one(
    driver: Driver, trunk: TrunkId, start: Boundary, stop: Boundary, snapshot: Snapshot
) -> VersionComputed:
    """Import and wait until the version is there."""
    driver.submit(ImportIntoTrunk(trunk, start, stop, snapshot))
    event = driver.until(lambda e: isinstance(e, (VersionComputed, AppendFailed)))
    assert isinstance(event, VersionComputed), event
    return event


def hand_off(driver: Driver, command: StartAnswer) -> AnswerHandedOff:
    """Prefill a question and let go of it."""
    driver.submit(replace(command, prefill_only=True))
    event = driver.until(lambda e: isinstance(e, (AnswerHandedOff, AnswerFinished)))
    assert isinstance(event, AnswerHandedOff), event
    return event


def go_on(
    driver: Driver, command: StartAnswer, generated: Sequence[int], state: Snapshot | None
) -> Outcome:
    """Resume an answer and wait for its end."""
    driver.submit(replace(command, generated=tuple(generated), state=state))
    return driver.finished(command.answer_id)


def frames_and_snapshots(make_driver: MakeDriver, story: Items) -> tuple[Snapshot, ...]:
    """A snapshot of every item of a history, made by an engine of its own."""
    source, trunk = make_driver(), TrunkId("whole", 0)
    source.ingest(trunk, story)
    return export(source, trunk, boundaries(story, *range(8)))


# -------------------------------------------------------------------------------- situations
def ready(make_driver: MakeDriver, story: Items, **settings: Any) -> Driver:
    driver = make_driver(**settings)
    driver.ingest(TABLE, story, last=4)
    return driver


def state_after(
    make_driver: MakeDriver, story: Items, command: StartAnswer, generated: tuple[int, ...]
) -> Snapshot:
    """What a branch holds when ``generated`` have been generated: made on a trunk."""
    driver = ready(make_driver, story)
    tokens = command.prompt + generated[:-1]
    driver.submit(AppendToTrunk(TABLE, 5, (TokenSegment(tokens),)))
    driver.until_version(TABLE, 5)
    (state,) = export(driver, TABLE, (command.start, suffix_boundary(command.start, tokens)))
    return state


def record_rows(driver: Driver) -> list[int]:
    """Rows of every batch of tokens from now on."""
    rows: list[int] = []
    decode = driver.engine._context.decode_tokens

    def counting(tokens, positions, sequences, wants):  # type: ignore[no-untyped-def]
        rows.append(len(tokens))
        decode(tokens, positions, sequences, wants)

    driver.engine._context.decode_tokens = counting  # type: ignore[method-assign]
    return rows


# -------------------------------------------------------------------------------- comparisons
def assert_same_kv(left: Snapshot, right: Snapshot) -> None:
    """Same places of the same history, same positions, same bits of every row of every layer.

    How cells are ordered is each engine's own affair.
    """
    assert left.header == right.header
    has_grids = left.header.layout.has_grids
    first, second = (parse_state_blob(s.blob, has_grids=has_grids) for s in (left, right))
    assert first.ggml_type == second.ggml_type
    positions, keys, values = first.by_position()
    other_positions, other_keys, other_values = second.by_position()
    np.testing.assert_array_equal(positions, other_positions)
    if has_grids:
        assert len(positions) == left.header.stop_tokens - left.header.start_tokens
        assert list(positions[:1]) in ([], [left.header.start_positions])
    else:
        expected = np.arange(left.header.start_tokens, left.header.stop_tokens)
        np.testing.assert_array_equal(positions, expected)
    assert len(keys) == len(other_keys) == len(values) == len(other_values)
    assert len(keys) == (left.header.layout.n_layer if len(positions) else 0)
    for mine, theirs in zip((*keys, *values), (*other_keys, *other_values), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def rows_of(snapshot: Snapshot, n: int) -> list[bytes]:
    """All K and V rows of the first ``n`` positions."""
    has_grids = snapshot.header.layout.has_grids
    _, keys, values = parse_state_blob(snapshot.blob, has_grids=has_grids).by_position()
    return [layer[:n].tobytes() for layer in (*keys, *values)]


# -------------------------------------------------------------------------------- the check
def check_transfer(source: Driver, target: Driver, story: Items, *, same_numbers: bool) -> None:
    """Full, delta and handoff ranges go from ``source`` to ``target`` unchanged: values, positions
    and boundaries. With ``same_numbers`` the engines also compute alike, so answers are equal."""
    trunk = TrunkId("transferred", 0)
    for driver in (source, target):
        driver.answers.clear()  # of an earlier check with the same engines
    source.ingest(trunk, story, last=3)
    _check_full(source, target, story, trunk)
    source.ingest(trunk, story, first=4, last=6)
    _check_deltas(source, target, story, trunk)
    _check_handoff(source, target, story, trunk, same_numbers)
    for driver in (source, target):
        driver.drop(trunk)


def _check_full(source: Driver, target: Driver, story: Items, trunk: TrunkId) -> None:
    start, stop = boundaries(story, 0, 3)
    (snapshot,) = export(source, trunk, (start, stop))
    computed = import_one(target, trunk, start, stop, snapshot)
    assert (computed.trunk, computed.n, computed.tokens) == (trunk, 3, stop.tokens)
    assert computed.origin is Origin.IMPORTED
    (back,) = export(target, trunk, (start, stop))
    assert_same_kv(snapshot, back)


def _check_deltas(source: Driver, target: Driver, story: Items, trunk: TrunkId) -> None:
    ends = boundaries(story, 3, 4, 6)
    pieces = export(source, trunk, ends)
    assert [(p.header.start_tokens, p.header.stop_tokens) for p in pieces] == [
        (a.tokens, b.tokens) for a, b in pairwise(ends)
    ]
    for (start, stop), piece in zip(pairwise(ends), pieces, strict=True):
        arrived = import_one(target, trunk, start, stop, Snapshot.from_bytes(piece.to_bytes()))
        assert (arrived.n, arrived.tokens) == (stop.n, stop.tokens)
    for piece, back in zip(pieces, export(target, trunk, ends), strict=True):
        assert_same_kv(piece, back)
    whole = boundaries(story, 0, 6)
    (here,), (there,) = export(source, trunk, whole), export(target, trunk, whole)
    assert_same_kv(here, there)


def _check_handoff(
    source: Driver, target: Driver, story: Items, trunk: TrunkId, same_numbers: bool
) -> None:
    command = source.question(900, trunk, boundary(story, 6), QUESTION)
    whole = source.ask(901, trunk, boundary(story, 6), QUESTION)
    left = hand_off(source, command)
    first = source.answers[900].told
    header = left.state.header
    assert first == list(whole.ids[:1])
    assert (header.start_tokens, header.start_identity) == (
        command.start.tokens,
        command.start.identity,
    )
    assert header.stop_tokens == command.start.tokens + len(command.prompt)
    # Handed off once more, after one token: what it has then begins with what it was given.
    again = hand_off(target, replace(command, generated=tuple(first), state=left.state))
    n = len(command.prompt)
    assert again.state.header.stop_tokens == header.stop_tokens + 1
    assert rows_of(again.state, n) == rows_of(left.state, n)
    outcome = go_on(target, replace(command, answer_id=902), first, left.state)
    assert outcome.ids[:1] == tuple(first)
    assert not same_numbers or outcome.ids == whole.ids
