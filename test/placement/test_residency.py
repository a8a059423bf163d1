"""The residency table."""

from __future__ import annotations

from placement_helpers import ROOT, end, hold, trunk

from edge_vlm_ros.engines.protocol import Origin, TrunkId
from edge_vlm_ros.placement.residency import ResidencyTable, farthest


def test_a_new_trunk_holds_nothing() -> None:
    record = ResidencyTable().begin("cpu", "table", 3, ROOT, 1.0)
    assert (record.computed, record.submitted, record.cells) == (ROOT, ROOT, 0)
    assert record.settled and record.boundaries(0) == [ROOT]
    assert (record.trunk.stream, record.trunk.epoch) == ("table", 3)


def test_a_trunk_begun_again_is_another_one() -> None:
    table = ResidencyTable()
    first = trunk(table, "cpu", "table", 3)
    table.drop(first)
    second = trunk(table, "cpu", "table")
    assert first.trunk != second.trunk
    assert table.of("cpu", first.trunk) is None
    assert table.of("cpu", second.trunk) is second
    assert table.of("gpu", second.trunk) is None


def test_a_renewed_trunk_keeps_who_needs_it() -> None:
    table = ResidencyTable()
    record = trunk(table, "cpu", "table", 3, 10)
    record.reserved[5] = 10
    before = record.trunk
    record.planned.append(end(3, 20))
    table.renew(record)
    assert record.trunk != before and record.computed == record.submitted == ROOT
    assert record.planned == [], "what the old trunk was to reach"
    assert table.of("cpu", record.trunk) is record and table.of("cpu", before) is None
    assert record.cells == 10


def test_a_cut_trunk_keeps_what_it_holds_and_nothing_that_was_on_its_way() -> None:
    table = ResidencyTable()
    record = trunk(table, "cpu", "table", 3, 10)
    record.reserved[5] = 10
    record.awaited_n = 4
    record.planned += [end(3, 20), end(4, 30)]
    record.submitted = end(4, 30)
    before = record.trunk
    table.cut(record)
    assert record.computed == record.submitted == record.importing == end(2, 10)
    assert (record.planned, record.awaited_n, record.cells) == ([], 0, 10)
    assert table.of("cpu", record.trunk) is record and table.of("cpu", before) is None


def test_what_is_decided_takes_cells_already() -> None:
    table = ResidencyTable()
    record = trunk(table, "cpu", "table", 3, 10)
    record.submitted = end(3, 30)
    assert record.cells == 30 and not record.settled
    record.reserved[7] = 50
    assert record.cells == 50
    trunk(table, "cpu", "shelf", 4)
    trunk(table, "gpu", "table", 100)
    assert (table.cells("cpu"), table.cells("gpu")) == (54, 100)


def test_boundaries_start_where_asked() -> None:
    record = trunk(ResidencyTable(), "cpu", "table", 3, 10, 20)
    assert record.boundaries(0) == [ROOT, end(1, 3), end(2, 10), end(3, 20)]
    assert record.boundaries(2) == [end(2, 10), end(3, 20)]


def test_tokens_by_origin_of_a_range() -> None:
    record = trunk(ResidencyTable(), "cpu", "table", 3)
    hold(record, 10, origin=Origin.IMPORTED)
    hold(record, 30, 60)
    everything = record.tokens_by_origin(0, 4)
    assert everything == {Origin.COMPUTED: 53, Origin.IMPORTED: 7, Origin.FORKED: 0}
    assert record.tokens_by_origin(1, 3) == {
        Origin.COMPUTED: 20,
        Origin.IMPORTED: 7,
        Origin.FORKED: 0,
    }


def test_lookups() -> None:
    table = ResidencyTable()
    old = trunk(table, "cpu", "table", 3)
    new = trunk(table, "cpu", "table", 3, 5, epoch=1)
    copy = trunk(table, "gpu", "table", 3, 5, 9, epoch=1)
    other = trunk(table, "gpu", "shelf", 3)
    assert table.on_engine("cpu") == [old, new]
    assert table.of_stream("table") == [old, new, copy]
    assert table.of_epoch("table", 1) == [new, copy]
    assert farthest(table.of_epoch("table", 1)) is copy and farthest([]) is None
    table.drop(copy)
    table.drop(copy)
    assert list(table) == [old, new, other]
    assert table.get("gpu", "table", 1) is None
    assert table.of("gpu", TrunkId("table", 1, copy.trunk.life)) is None
