"""Transfers are steps among others: running answers wait for one at most."""

from __future__ import annotations

from collections.abc import Callable

from engine_helpers import Driver, Items, MakeDriver, hold
from transfer_helpers import QUESTION, assert_same_kv, boundaries, frames_and_snapshots

from edge_vlm_ros.engines.protocol import (
    ExportRange,
    ImportIntoTrunk,
    RangeExported,
    TrunkId,
    VersionComputed,
)

TABLE, SHELF, MOVED = TrunkId("table", 0), TrunkId("shelf", 0), TrunkId("table", 1)


def record_steps(driver: Driver) -> list[str]:
    """``D`` for every decode step and ``T`` for every transfer, in order, from now on."""
    steps: list[str] = []
    context = driver.engine._context

    def noting(name: str, letter: str, when: Callable[..., bool]) -> None:
        original = getattr(context, name)

        def noted(*args: object) -> object:
            if when(*args):
                steps.append(letter)
            return original(*args)

        setattr(context, name, noted)

    noting("decode_tokens", "D", lambda _tokens, _positions, _sequences, wants: all(wants))
    noting("export_range", "T", lambda *_: True)
    noting("import_range", "T", lambda *_: True)
    return steps


def test_answers_go_on_beside_transfers(
    make_driver: MakeDriver, story: Items, other_story: Items
) -> None:
    """A long export and a long import, frames too: one transfer at most between two tokens, and
    the text is the same."""
    pieces = frames_and_snapshots(make_driver, story)
    b = boundaries(story, *range(8))
    driver = make_driver()
    driver.ingest(TABLE, story)
    driver.ingest(SHELF, other_story, last=2)
    expected = driver.ask(1, TABLE, b[7], QUESTION)
    steps = record_steps(driver)
    first_step = len(driver.question(2, TABLE, b[7], QUESTION).prompt) + b[7].tokens
    entered, go_on = hold(driver, "decode_tokens", lambda _, positions, *__: first_step
                          in positions)  # fmt: skip
    driver.submit(driver.question(2, TABLE, b[7], QUESTION))
    assert entered.wait(60)
    driver.submit(ExportRange(1, TABLE, b))
    for k in range(7):
        driver.submit(ImportIntoTrunk(MOVED, b[k], b[k + 1], pieces[k]))
    driver.append(SHELF, other_story, first=3, last=5)
    go_on.set()
    outcome = driver.finished(2)
    assert outcome.ids == expected.ids
    order = "".join(steps)[: "".join(steps).rindex("D") + 1]
    assert len(outcome.ids) > 16, "choose a question with a longer answer"
    assert "TT" not in order
    assert order.count("T") == 14
    driver.until_version(MOVED, 7)
    exported = [e for e in driver.seen if isinstance(e, RangeExported)]
    for here, there in zip(pieces, exported[0].snapshots, strict=True):
        assert_same_kv(here, there)
    assert driver.ask(3, MOVED, b[7], QUESTION).ids == expected.ids


def test_imports_and_exports_take_turns(make_driver: MakeDriver, story: Items) -> None:
    pieces = frames_and_snapshots(make_driver, story)
    b = boundaries(story, *range(8))
    driver = make_driver()
    driver.ingest(TABLE, story)
    entered, go_on = hold(driver, "export_range")
    driver.submit(ExportRange(1, TABLE, b))
    assert entered.wait(60)
    for k in range(7):
        driver.submit(ImportIntoTrunk(MOVED, b[k], b[k + 1], pieces[k]))
    go_on.set()
    driver.until_type(RangeExported)
    assert len(driver.of_type(VersionComputed)) >= 7 + 5
