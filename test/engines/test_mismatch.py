"""KV that does not belong here is refused by a running engine, and nothing of it is touched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import llama_cpp.llama_cpp as llama
import pytest
from engine_helpers import Driver, Items, MakeDriver, assert_nothing_is_left, n_tokens
from test_snapshot import flip, insert, overwrite, remove, reseal
from transfer_helpers import QUESTION, assert_same_kv, boundaries, export, import_one

from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.errors import SnapshotError
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.protocol import (
    AppendFailed,
    ImportIntoTrunk,
    Origin,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.snapshot import HEADER_BYTES, Layout, Snapshot
from edge_vlm_ros.runtime.prompt import PromptTemplate

TABLE = TrunkId("table", 0)
HELD, WANTED = 3, 5
"""Versions that the destination has, and that it is to get."""


def source(driver: Driver, story: Items) -> Snapshot:
    """The delta that is wanted, as this engine has it."""
    driver.ingest(TABLE, story, last=WANTED)
    (snapshot,) = export(driver, TABLE, boundaries(story, HELD, WANTED))
    return snapshot


@dataclass
class Destination:
    """An engine with something in it, and what is to stay as it is."""

    driver: Driver
    story: Items

    def __post_init__(self) -> None:
        self.driver.ingest(TABLE, self.story, last=HELD)
        self.before = self.held()
        self.answer = self.ask(1)

    def held(self) -> Snapshot:
        return export(self.driver, TABLE, boundaries(self.story, 0, HELD))[0]

    def ask(self, answer_id: int) -> tuple[int, ...]:
        (held,) = boundaries(self.story, HELD)
        return self.driver.ask(answer_id, TABLE, held, QUESTION).ids

    def send(self, snapshot: Snapshot) -> AppendFailed | VersionComputed:
        start, stop = boundaries(self.story, HELD, WANTED)
        self.driver.submit(ImportIntoTrunk(TABLE, start, stop, snapshot))
        event = self.driver.until(lambda e: isinstance(e, (AppendFailed, VersionComputed)))
        assert isinstance(event, (AppendFailed, VersionComputed))
        return event

    def assert_untouched(self) -> None:
        assert_same_kv(self.before, self.held())
        assert self.ask(2) == self.answer
        assert_nothing_is_left(self.driver, cells=n_tokens(self.story, HELD), trunks=1)


@pytest.fixture
def destination(make_driver: MakeDriver, story: Items) -> Destination:
    return Destination(make_driver(), story)


@pytest.fixture
def good(make_driver: MakeDriver, story: Items) -> Snapshot:
    return source(make_driver(), story)


def assert_refused(destination: Destination, snapshot: Snapshot, text: str) -> str:
    """Returns the message."""
    failed = destination.send(snapshot)
    assert isinstance(failed, AppendFailed), "it was imported"
    assert (failed.n, failed.origin) == (WANTED, Origin.IMPORTED)
    assert text in failed.error
    destination.driver.answers.clear()
    destination.assert_untouched()
    return failed.error


# -------------------------------------------------------------------------------- other engines
@pytest.fixture
def sibling(model: LlamaModel, tmp_path: Path) -> Iterator[LlamaModel]:
    """A model of equal geometry: one weight is another."""
    data = bytearray(model.path.read_bytes())
    data[-40] ^= 1
    path = tmp_path / "sibling.gguf"
    path.write_bytes(data)
    other = LlamaModel(path)
    yield other
    other.close()


def test_another_model_of_equal_geometry(
    destination: Destination, sibling: LlamaModel, prompt: PromptTemplate, story: Items
) -> None:
    driver = Driver(sibling, prompt)
    try:
        snapshot = source(driver, story)
    finally:
        driver.engine.close()
    assert len(snapshot.blob) == len(source_of(destination, story).blob)
    assert_refused(destination, snapshot, "another model")


def source_of(destination: Destination, story: Items) -> Snapshot:
    """A snapshot of the same size from the destination's own model."""
    other = TrunkId("sized", 0)
    destination.driver.ingest(other, story, last=WANTED)
    (snapshot,) = export(destination.driver, other, boundaries(story, HELD, WANTED))
    destination.driver.drop(other)
    return snapshot


def test_another_kv_type(destination: Destination, make_driver: MakeDriver, story: Items) -> None:
    driver = make_driver(kv_type="f16")
    assert_refused(destination, source(driver, story), "KV of type f16, this engine has q8_0")


def test_another_rotation(
    destination: Destination,
    make_driver: MakeDriver,
    story: Items,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    driver = make_driver()
    assert not driver.engine.layout.kv_rotation
    assert_refused(destination, source(driver, story), "KV without rotation")


@pytest.mark.parametrize(
    ("kv_type", "value", "rotated"),
    [("q8_0", None, True), ("q8_0", "0", True), ("q8_0", "", True), ("q8_0", "off", True),
     ("q8_0", "1", False), ("q8_0", " -2x", False), ("f16", None, False), ("f16", "1", False)],
)  # fmt: skip
def test_the_layout_knows_whether_llama_cpp_rotates(
    model: LlamaModel,
    make_driver: MakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    kv_type: str,
    value: str | None,
    rotated: bool,
) -> None:
    """K and V are other numbers when they are rotated: that shows what llama.cpp has done."""

    def exported() -> bytes:
        context = LlamaContext(
            model, n_ctx=256, n_seq_max=2, n_batch=64, kv_type=kv_type, n_threads=1
        )  # type: ignore[arg-type]
        context.decode_tokens(range(20, 30), range(10), [0] * 10, [False] * 10)
        blob = context.export_range(0, 0, 10)
        context.close()
        return blob.tobytes()

    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    plain = exported()
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE")
    if value is not None:
        monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", value)
    assert (exported() != plain) is rotated
    assert make_driver(kv_type=kv_type).engine.layout.kv_rotation is rotated


def test_another_flash_attention_setting(
    make_driver: MakeDriver, story: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that does not know that it works without: its blobs say so."""
    destination = Destination(make_driver(kv_type="f16"), story)
    disabled = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    monkeypatch.setattr(llama, "LLAMA_FLASH_ATTN_TYPE_ENABLED", disabled)
    snapshot = source(make_driver(kv_type="f16"), story)
    monkeypatch.undo()
    assert_refused(destination, snapshot, "transposed V: it was made without flash attention")
    known = replace(snapshot.header.layout, flash_attention=False)
    told = Snapshot.seal(replace(snapshot.header, layout=known), snapshot.blob)
    assert_refused(destination, told, "was made without flash attention, this engine works with")


# -------------------------------------------------------------------------------- other contents
def relabelled(snapshot: Snapshot, **changes: object) -> Snapshot:
    header = replace(snapshot.header, **changes)  # type: ignore[arg-type]
    return Snapshot.seal(header, snapshot.blob)


def with_layout(snapshot: Snapshot, **changes: object) -> Snapshot:
    layout: Layout = replace(snapshot.header.layout, **changes)  # type: ignore[arg-type]
    return relabelled(snapshot, layout=layout)


def flipped(snapshot: Snapshot) -> Snapshot:
    blob = snapshot.blob.copy()
    blob[len(blob) // 2] ^= 4
    return replace(snapshot, blob=blob)


def lying(snapshot: Snapshot) -> Snapshot:
    """The header fits, and so does the checksum; the first cell says that it is another one."""
    blob = snapshot.blob.copy()
    blob[16] ^= 1
    return Snapshot.seal(snapshot.header, blob)


MATRIX: dict[str, tuple[Callable[[Snapshot], Snapshot], str]] = {
    "bit-flipped": (flipped, "damaged: its checksum is"),
    "cut off": (lambda s: replace(s, blob=s.blob[:-34]), "damaged: its checksum is"),
    "cut off and sealed": (
        lambda s: Snapshot.seal(s.header, s.blob[:-34].copy()),
        "state blob is cut off",
    ),
    "lying": (lying, "its header says"),
    "other rope": (lambda s: with_layout(s, rope_freq_base=5e5), "rope (type, base, scale)"),
    "other layers": (lambda s: with_layout(s, n_layer=9), "(layers, K values, V values)"),
    "other architecture": (lambda s: with_layout(s, architecture="llama"), "another model"),
    "wrong epoch, start": (
        lambda s: relabelled(s, start_identity=b"x" * 32),
        "another history or epoch: it begins behind",
    ),
    "wrong epoch, stop": (
        lambda s: relabelled(s, stop_identity=b"x" * 32),
        "another history or epoch: it ends at",
    ),
    "wrong start": (
        lambda s: relabelled(s, start_tokens=s.header.start_tokens - 1),
        "the snapshot holds cells",
    ),
    "wrong stop": (
        lambda s: relabelled(s, stop_tokens=s.header.stop_tokens + 1),
        "the snapshot holds cells",
    ),
}


@pytest.mark.parametrize("name", MATRIX)
def test_other_contents(destination: Destination, good: Snapshot, name: str) -> None:
    change, text = MATRIX[name]
    assert_refused(destination, change(good), text)
    start, stop = boundaries(destination.story, HELD, WANTED)
    import_one(destination.driver, TABLE, start, stop, good)  # what is right is still taken


def test_another_history(
    destination: Destination, make_driver: MakeDriver, other_story: Items
) -> None:
    """Of equal shape: only the identities tell."""
    assert_refused(destination, source(make_driver(), other_story), "another history or epoch")


def test_a_range_that_leaves_a_gap(
    destination: Destination, make_driver: MakeDriver, story: Items
) -> None:
    driver = make_driver()
    driver.ingest(TABLE, story)
    (snapshot,) = export(driver, TABLE, boundaries(story, HELD + 1, WANTED + 1))
    assert_refused(destination, snapshot, "the snapshot holds cells")


def test_mutated_snapshots_never_reach_llama_cpp_or_do_no_harm(
    destination: Destination, good: Snapshot
) -> None:
    """Sealed again, so that no checksum helps: the engine refuses them or takes rows that differ,
    and goes on working."""
    rng = random.Random(5)
    data = good.to_bytes()
    refused = imported = 0
    start, stop = boundaries(destination.story, HELD, WANTED)
    n_layer_at = HEADER_BYTES + 16 + 12 * (stop.tokens - start.tokens)
    for _ in range(300):
        mutated = bytearray(data)
        if rng.random() < 0.2:  # what comes behind the cells
            mutated[n_layer_at + rng.randrange(20)] ^= 1 << rng.randrange(8)
        else:
            rng.choice((flip, insert, remove, overwrite))(rng, mutated)
        reseal(mutated)
        try:
            snapshot = Snapshot.from_bytes(bytes(mutated))
        except SnapshotError:
            continue
        if isinstance(destination.send(snapshot), AppendFailed):
            refused += 1
            continue
        imported += 1
        destination.driver.drop(TABLE)
        destination.driver.ingest(TABLE, destination.story, last=HELD)
    assert refused > 100 and imported > 5
    destination.driver.answers.clear()
    destination.assert_untouched()
    destination.send(good)
    (whole,) = export(destination.driver, TABLE, (start, stop))
    assert_same_kv(good, whole)
