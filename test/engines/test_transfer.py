"""KV moves between engines unchanged, and answers go on from it as if it had been computed here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_helpers import (
    Items,
    MakeDriver,
    assert_nothing_is_left,
    boundary,
    hold,
    n_tokens,
)
from transfer_helpers import (
    QUESTION,
    ROOT,
    assert_same_kv,
    boundaries,
    check_transfer,
    export,
    frames_and_snapshots,
    import_one,
)

from edge_vlm_ros.engines.errors import ImportRefusedError
from edge_vlm_ros.engines.protocol import (
    AppendFailed,
    AppendToTrunk,
    DropTrunk,
    ExportFailed,
    ExportRange,
    ForkTrunk,
    ImportIntoTrunk,
    Origin,
    RangeExported,
    TrunkId,
    VersionComputed,
)

TABLE, SHELF, MOVED = TrunkId("table", 0), TrunkId("shelf", 0), TrunkId("table", 1)


@pytest.mark.parametrize("kv_type", ["q8_0", "f16"])
def test_transfer_between_two_engines(make_driver: MakeDriver, story: Items, kv_type: str) -> None:
    """Also when the cells of the destination are in other places than those of the source."""
    source, target = make_driver(kv_type=kv_type), make_driver(kv_type=kv_type)
    target.ingest(SHELF, story, last=2)
    check_transfer(source, target, story, same_numbers=kv_type == "q8_0")
    n = n_tokens(story, 2)
    assert_nothing_is_left(source)
    assert_nothing_is_left(target, cells=n, trunks=1)


def test_an_import_into_scattered_cells(
    make_driver: MakeDriver, story: Items, other_story: Items
) -> None:
    """Free cells need not lie together."""
    source, target = make_driver(), make_driver(n_ctx=512, answer_cells=64)
    source.ingest(TABLE, story, last=4)
    expected = source.ask(1, TABLE, boundary(story, 4), QUESTION)
    other = TrunkId("other", 0)
    target.append(SHELF, other_story, last=4)
    target.append(other, other_story, last=4)
    target.until_version(SHELF, 4)
    target.until_version(other, 4)
    target.drop(SHELF)
    start, stop = boundaries(story, 0, 4)
    (snapshot,) = export(source, TABLE, (start, stop))
    import_one(target, TABLE, start, stop, snapshot)
    assert_same_kv(snapshot, *export(target, TABLE, (start, stop)))
    assert target.ask(1, TABLE, stop, QUESTION).ids == expected.ids


def test_a_trunk_goes_on_where_it_was_imported(make_driver: MakeDriver, story: Items) -> None:
    """Import, compute, import: the same KV and answers as computed in one place."""
    source, target = make_driver(), make_driver()
    source.ingest(TABLE, story)
    expected = source.ask(1, TABLE, boundary(story, 7), QUESTION)
    ends = boundaries(story, 0, 3, 5, 7)
    pieces = export(source, TABLE, ends)
    import_one(target, TABLE, ends[0], ends[1], pieces[0])
    target.ingest(TABLE, story, first=4, last=5)
    import_one(target, TABLE, ends[2], ends[3], pieces[2])
    for here, there in zip(pieces, export(target, TABLE, ends), strict=True):
        assert_same_kv(here, there)
    assert target.ask(1, TABLE, ends[3], QUESTION).ids == expected.ids
    origins = [(v.n, v.origin) for v in target.of_type(VersionComputed)]
    assert origins == [
        (3, Origin.IMPORTED), (4, Origin.COMPUTED), (5, Origin.COMPUTED), (7, Origin.IMPORTED)
    ]  # fmt: skip
    status = target.settle()
    assert status.imported_bytes == pieces[0].n_bytes + pieces[2].n_bytes
    assert status.exported_bytes == sum(p.n_bytes for p in pieces)
    assert status.import_bytes_s > 0 and status.export_bytes_s > 0
    assert status.cells_used == n_tokens(story, 7)


def test_versions_without_tokens_are_moved_too(make_driver: MakeDriver, story: Items) -> None:
    """The encoder failed on a frame: its version is there, and as long as the one before."""
    source, target = make_driver(), make_driver()
    items = (story[0], (), story[1])
    source.ingest(TABLE, items)
    ends = boundaries(items, 0, 1, 2, 3)
    pieces = export(source, TABLE, ends)
    for k, piece in enumerate(pieces):
        import_one(target, TABLE, ends[k], ends[k + 1], piece)
    for here, there in zip(pieces, export(target, TABLE, ends), strict=True):
        assert_same_kv(here, there)
    assert target.settle().cells_used == n_tokens(items, 3)


# -------------------------------------------------------------------------------- exports
def test_an_export_holds_its_range(
    make_driver: MakeDriver, story: Items, other_story: Items
) -> None:
    """The trunk may be dropped right after the command, and its name taken."""
    driver = make_driver()
    driver.ingest(TABLE, story, last=4)
    ends = boundaries(story, 0, 2, 4)
    expected = export(driver, TABLE, ends)
    driver.submit(ExportRange(2, TABLE, ends), DropTrunk(TABLE))
    driver.ingest(TABLE, other_story, last=3)
    found = driver.of_type(RangeExported)[-1]
    assert found.request_id == 2
    for here, there in zip(expected, found.snapshots, strict=True):
        assert_same_kv(here, there)
    assert_nothing_is_left(driver, cells=n_tokens(other_story, 3), trunks=1)


def test_cells_of_a_pending_export_are_accounted(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=4)
    entered, go_on = hold(driver, "export_range")
    driver.submit(ExportRange(1, TABLE, boundaries(story, 0, 2, 3)), DropTrunk(TABLE))
    assert entered.wait(60)
    assert driver.engine._core.ledger.used == n_tokens(story, 3)
    go_on.set()
    driver.until_type(RangeExported)
    assert_nothing_is_left(driver)


def test_exports_that_cannot_be_made(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(max_exports=1)
    driver.ingest(TABLE, story, last=2)
    two, three = boundaries(story, 2, 3)
    for ends, reason in [
        ((ROOT, three), "are needed"),
        ((ROOT,), "two or more boundaries"),
        ((two, ROOT), "in order"),
    ]:
        driver.submit(ExportRange(7, TABLE, ends))
        failed = driver.until_type(ExportFailed)
        assert failed.request_id == 7 and reason in failed.error
    driver.submit(ExportRange(8, SHELF, (ROOT, two)))
    assert "shelf" in driver.until_type(ExportFailed).error
    entered, go_on = hold(driver, "export_range")
    driver.submit(ExportRange(9, TABLE, boundaries(story, 0, 1, 2)))
    assert entered.wait(60)
    driver.submit(ExportRange(10, TABLE, (ROOT, two)))
    go_on.set()
    events = [driver.until(lambda e: isinstance(e, (ExportFailed, RangeExported))) for _ in "ab"]
    assert {e.request_id: type(e) for e in events} == {9: RangeExported, 10: ExportFailed}
    assert_nothing_is_left(driver, cells=n_tokens(story, 2), trunks=1)


# -------------------------------------------------------------------------------- imports
def test_imports_and_appends_are_carried_out_in_order(
    make_driver: MakeDriver, story: Items
) -> None:
    """What the trunk has, or is going to have, is ignored; what leaves a gap fails."""
    pieces = frames_and_snapshots(make_driver, story)
    b = boundaries(story, *range(8))
    driver = make_driver()
    entered, go_on = hold(driver, "extend")
    driver.append(TABLE, story, last=1)
    assert entered.wait(60)
    driver.submit(ImportIntoTrunk(TABLE, b[1], b[2], pieces[1]))
    driver.append(TABLE, story, first=1, last=3)
    driver.submit(
        ImportIntoTrunk(TABLE, b[2], b[3], pieces[2]),
        ImportIntoTrunk(TABLE, b[3], b[4], pieces[3]),
        ImportIntoTrunk(TABLE, b[5], b[6], pieces[5]),  # a gap
        ImportIntoTrunk(TABLE, b[1], b[5], pieces[1]),  # reaches back
    )
    go_on.set()
    failed = [driver.until_type(AppendFailed) for _ in range(2)]
    assert [(f.n, f.origin) for f in failed] == [(6, Origin.IMPORTED), (5, Origin.IMPORTED)]
    assert "no version before 6" in failed[0].error
    assert "before 5 already" in failed[1].error
    driver.until_version(TABLE, 4)
    assert [(v.n, v.origin) for v in driver.of_type(VersionComputed)] == [
        (1, Origin.COMPUTED), (2, Origin.IMPORTED), (3, Origin.COMPUTED), (4, Origin.IMPORTED)
    ]  # fmt: skip
    assert_same_kv(pieces[3], *export(driver, TABLE, b[3:5]))


def test_a_failed_import_fails_what_is_queued_behind_it(
    make_driver: MakeDriver, story: Items
) -> None:
    pieces = frames_and_snapshots(make_driver, story)
    b = boundaries(story, *range(8))
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    before = export(driver, TABLE, b[:3])
    driver.submit(
        ImportIntoTrunk(TABLE, b[2], b[3], pieces[5]),
        AppendToTrunk(TABLE, 4, story[3]),
        ImportIntoTrunk(TABLE, b[4], b[5], pieces[4]),
    )
    failed = [driver.until_type(AppendFailed) for _ in range(3)]
    assert [(f.n, f.origin) for f in failed] == [
        (3, Origin.IMPORTED), (4, Origin.COMPUTED), (5, Origin.IMPORTED)
    ]  # fmt: skip
    for here, there in zip(before, export(driver, TABLE, b[:3]), strict=True):
        assert_same_kv(here, there)
    assert_nothing_is_left(driver, cells=n_tokens(story, 2), trunks=1)
    driver.submit(ImportIntoTrunk(TABLE, b[2], b[5], pieces[2]))  # several versions at once
    assert driver.until_type(AppendFailed).n == 5
    import_one(driver, TABLE, b[2], b[3], pieces[2])
    driver.ingest(TABLE, story, first=4, last=4)
    assert_same_kv(pieces[3], *export(driver, TABLE, b[3:5]))


def test_an_import_leaves_room_for_one_answer(make_driver: MakeDriver, story: Items) -> None:
    """It waits for cells like a frame does."""
    pieces = frames_and_snapshots(make_driver, story)
    b = boundaries(story, *range(8))
    driver = make_driver(n_ctx=256, answer_cells=128)
    driver.ingest(SHELF, story, last=2)
    for k in range(3):
        driver.submit(ImportIntoTrunk(TABLE, b[k], b[k + 1], pieces[k]))
    driver.until_version(TABLE, 2)
    assert driver.settle().cells_used == 2 * n_tokens(story, 2) <= 128
    assert driver.ask(1, TABLE, b[2], QUESTION, max_tokens=60).end.error == ""
    driver.drop(SHELF)
    driver.until_version(TABLE, 3)
    assert_nothing_is_left(driver, cells=n_tokens(story, 3), trunks=1)


def test_an_import_that_llama_cpp_refuses(make_driver: MakeDriver, story: Items) -> None:
    """Too few cells, which the ledger would have known: the trunk is whole, nothing is lost."""
    pieces = frames_and_snapshots(make_driver, story)
    b = boundaries(story, *range(8))
    driver = make_driver(n_ctx=256, answer_cells=16)
    driver.ingest(TABLE, story, last=3)
    expected = driver.ask(1, TABLE, b[3], QUESTION, max_tokens=9).ids
    before = export(driver, TABLE, b[:4])
    other = TrunkId("other", 0)
    driver.ingest(other, story, last=2)
    context, imported = driver.engine._context, []

    def overfull(blob, sequence, start, stop, end):  # type: ignore[no-untyped-def]
        taken = driver.engine._core.begin()
        n = 256 - n_tokens(story, 3) - n_tokens(story, 2) - 50
        context.extend(taken, 0, tuple(range(20, 20 + n)))
        try:
            original(blob, sequence, start, stop, end)
        except ImportRefusedError:
            imported.append(sequence)
            raise
        finally:
            driver.engine._core.release(taken)

    original = context.import_range
    context.import_range = overfull  # type: ignore[method-assign]
    driver.submit(ImportIntoTrunk(TABLE, b[3], b[4], pieces[3]))
    failed = driver.until_type(AppendFailed)
    assert imported and failed.origin is Origin.IMPORTED
    assert "no free KV cells for" in failed.error
    context.import_range = original  # type: ignore[method-assign]
    for here, there in zip(before, export(driver, TABLE, b[:4]), strict=True):
        assert_same_kv(here, there)
    assert driver.ask(2, TABLE, b[3], QUESTION, max_tokens=9).ids == expected
    assert_nothing_is_left(driver, cells=n_tokens(story, 3) + n_tokens(story, 2), trunks=2)
    import_one(driver, TABLE, b[3], b[4], pieces[3])


# -------------------------------------------------------------------------------- forks
def test_a_forked_trunk(make_driver: MakeDriver, story: Items, other_story: Items) -> None:
    """It has the versions of its source up to a place, and a future of its own."""
    driver, alone = make_driver(), make_driver()
    driver.ingest(TABLE, story, last=5)
    driver.submit(ForkTrunk(TABLE, MOVED, boundary(story, 3)))
    forked = driver.until_type(VersionComputed)
    assert (forked.trunk, forked.n, forked.tokens) == (MOVED, 3, n_tokens(story, 3))
    assert (forked.origin, forked.seconds) == (Origin.FORKED, 0.0)
    assert driver.settle().cells_used == n_tokens(story, 5)  # shared ones once
    items = (*story[:3], *other_story[3:5])
    driver.ingest(MOVED, items, first=4)
    assert driver.settle().cells_used == n_tokens(story, 5) + n_tokens(items, 5) - forked.tokens
    alone.ingest(TABLE, items)
    ends = boundaries(items, 0, 3, 5)
    for here, there in zip(export(alone, TABLE, ends), export(driver, MOVED, ends), strict=True):
        assert_same_kv(here, there)
    driver.drop(TABLE)
    assert driver.settle().cells_used == n_tokens(items, 5)
    expected = alone.ask(1, TABLE, ends[-1], QUESTION)
    assert driver.ask(1, MOVED, ends[-1], QUESTION).ids == expected.ids
    assert_nothing_is_left(driver, cells=n_tokens(items, 5), trunks=1)


def test_forks_that_cannot_be_made(make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story, last=2)
    stop = boundary(story, 2)
    driver.submit(
        ForkTrunk(SHELF, MOVED, stop),
        ForkTrunk(TABLE, MOVED, boundary(story, 3)),
        ForkTrunk(TABLE, TABLE, stop),
    )
    failed = [driver.until_type(AppendFailed) for _ in range(3)]
    assert [(f.trunk, f.n, f.origin) for f in failed] == [
        (MOVED, 2, Origin.FORKED), (MOVED, 3, Origin.FORKED), (TABLE, 2, Origin.FORKED)
    ]  # fmt: skip
    assert "are needed" in failed[0].error and "are needed" in failed[1].error
    assert "there already" in failed[2].error
    assert_nothing_is_left(driver, cells=n_tokens(story, 2), trunks=1)


def test_a_wrong_place_of_the_trunk_is_refused(make_driver: MakeDriver, story: Items) -> None:
    """Versions of other lengths: the boundaries are not those of this trunk."""
    pieces = frames_and_snapshots(make_driver, story)
    driver = make_driver()
    driver.ingest(TABLE, story, last=1)
    two, three = boundaries(story, 2, 3)
    driver.submit(ImportIntoTrunk(TABLE, replace(two, n=1), replace(three, n=2), pieces[2]))
    failed = driver.until_type(AppendFailed)
    assert f"the import begins at {two.tokens}" in failed.error
    assert_nothing_is_left(driver, cells=n_tokens(story, 1), trunks=1)
