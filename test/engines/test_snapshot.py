"""A snapshot's bytes come back as they were, or not at all."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import fields, replace

import crc32c
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from snapshot_samples import LAYOUT, sample, sample_header

from edge_vlm_ros.engines import snapshot as snapshots
from edge_vlm_ros.engines.errors import (
    DamagedSnapshotError,
    ForeignFileError,
    HeaderVersionError,
    SnapshotError,
    TruncatedSnapshotError,
)
from edge_vlm_ros.engines.snapshot import HEADER_BYTES, Layout, Snapshot, SnapshotHeader
from edge_vlm_ros.engines.snapshot_check import check_snapshot
from edge_vlm_ros.engines.state_blob import parse_state_blob

FUZZ_CASES = 10_000
names = st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=8)
digests = st.binary(min_size=32, max_size=32)
numbers = st.integers(0, 2**32 - 1)
layouts = st.builds(
    Layout,
    architecture=names,
    model_digest=digests,
    kv_type=names,
    n_layer=numbers,
    n_embd_k=numbers,
    n_embd_v=numbers,
    rope_type=st.integers(-1, 2**31 - 1),
    rope_freq_base=st.floats(allow_nan=False),
    rope_freq_scale=st.floats(allow_nan=False),
)


def same(left: Snapshot, right: Snapshot) -> bool:
    return (left.header, left.checksum) == (right.header, right.checksum) and np.array_equal(
        left.blob, right.blob
    )


@given(layout=layouts, start=st.integers(0, 2**64 - 1), stop=st.integers(0, 2**64 - 1),
       identities=st.tuples(digests, digests), blob=st.binary(max_size=64))  # fmt: skip
def test_round_trip(
    layout: Layout, start: int, stop: int, identities: tuple[bytes, bytes], blob: bytes
) -> None:
    header = SnapshotHeader(layout, start, stop, stop, start, *identities)
    written = Snapshot.seal(header, np.frombuffer(blob, np.uint8))
    read = Snapshot.from_bytes(written.to_bytes())
    assert same(written, read)
    assert read.n_bytes == len(blob)
    read.verify()


def test_the_form_of_the_bytes() -> None:
    """What is written today is read by every software of this header version."""
    data = sample().to_bytes()
    assert data[:12] == b"\x89EVKV\r\n\x1a" + struct.pack("<I", 2)
    assert HEADER_BYTES == 242
    assert data[HEADER_BYTES:] == sample().blob.tobytes()
    (checksum,) = struct.unpack_from("<I", data, HEADER_BYTES - 4)
    assert checksum == crc32c.crc32c(data[: HEADER_BYTES - 4] + data[HEADER_BYTES:])
    assert struct.unpack_from("<QQ32s32sQ", data, HEADER_BYTES - 92) == (
        7, 12, b"a" * 32, b"b" * 32, sample().n_bytes
    )  # fmt: skip


@pytest.mark.parametrize("field", [f.name for f in fields(Layout)])
def test_fingerprints_tell_layouts_apart(field: str) -> None:
    value = getattr(LAYOUT, field)
    other = {
        bool: lambda v: not v,
        str: lambda v: v + "x",
        bytes: lambda v: v[::-1],
        int: lambda v: v + 1,
        float: lambda v: v * 2,
    }[type(value)](value)
    changed = replace(LAYOUT, **{field: other})
    assert changed.fingerprint != LAYOUT.fingerprint == replace(LAYOUT).fingerprint
    assert len(LAYOUT.fingerprint) == 16


def test_names_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="longer than the 48 bytes"):
        assert replace(LAYOUT, architecture="x" * 49).fingerprint


# -------------------------------------------------------------------------------- refusals
def test_a_foreign_file() -> None:
    for data in (
        b"",
        b"GGUF" + bytes(400),
        bytes(400),
        b"\x89PNG\r\n\x1a\n",
        sample().to_bytes()[1:],
    ):
        with pytest.raises(ForeignFileError, match="not a snapshot"):
            Snapshot.from_bytes(data)


def test_text_conversions_are_found_out() -> None:
    data = sample().to_bytes()
    with pytest.raises(ForeignFileError):
        Snapshot.from_bytes(data.replace(b"\r\n", b"\n"))


def test_another_header_version() -> None:
    data = bytearray(sample().to_bytes())
    struct.pack_into("<I", data, 8, 3)
    with pytest.raises(HeaderVersionError, match="header version 3, this software reads 2"):
        Snapshot.from_bytes(bytes(data))


def test_truncated_at_every_length() -> None:
    data = sample().to_bytes()
    for n in range(1, len(data)):
        with pytest.raises(TruncatedSnapshotError, match="truncated"):
            Snapshot.from_bytes(data[:n])


def test_bytes_after_the_end() -> None:
    with pytest.raises(DamagedSnapshotError, match="3 bytes follow"):
        Snapshot.from_bytes(sample().to_bytes() + b"abc")


@pytest.mark.parametrize(
    "at", [20, 100, 200, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 99, -1]
)
def test_a_flipped_bit(at: int) -> None:
    data = bytearray(sample().to_bytes())
    data[at] ^= 8
    with pytest.raises(DamagedSnapshotError, match="damaged: its checksum is"):
        Snapshot.from_bytes(bytes(data))


def test_damage_in_memory_is_found() -> None:
    whole = sample()
    blob = whole.blob.copy()
    blob[50] ^= 1
    with pytest.raises(DamagedSnapshotError, match="checksum"):
        replace(whole, blob=blob).verify()
    with pytest.raises(DamagedSnapshotError):
        replace(whole, header=sample_header(start=6)).verify()


# -------------------------------------------------------------------------------- fuzzing
Mutation = Callable[[random.Random, bytearray], None]


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 9))):
        data[place(rng, data)] ^= 1 << rng.randrange(8)


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[place(rng, data) :]


def insert(rng: random.Random, data: bytearray) -> None:
    at = place(rng, data)
    data[at:at] = rng.randbytes(rng.choice((1, 4, 100)))


def remove(rng: random.Random, data: bytearray) -> None:
    at = place(rng, data)
    del data[at : at + rng.choice((1, 4, 100))]


def duplicate(rng: random.Random, data: bytearray) -> None:
    at = place(rng, data)
    data[at:at] = data[at : at + rng.choice((1, 34, 500))]


def overwrite(rng: random.Random, data: bytearray) -> None:
    """A number somewhere, most of them in the header and at the beginning of the blob."""
    value = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, rng.getrandbits(32)))
    at = min(place(rng, data), len(data) - 4)
    struct.pack_into("<I", data, at, value)


def place(rng: random.Random, data: bytearray) -> int:
    most = min(len(data), HEADER_BYTES + 120) if rng.random() < 0.7 else len(data)
    return rng.randrange(most)


def reseal(data: bytearray) -> None:
    """Somebody who knows the form: length and checksum fit whatever was changed."""
    if len(data) >= HEADER_BYTES:
        struct.pack_into("<Q", data, HEADER_BYTES - 12, len(data) - HEADER_BYTES)
        sum_at = HEADER_BYTES - 4
        checksum = crc32c.crc32c(bytes(data[:sum_at]) + bytes(data[HEADER_BYTES:]))
        struct.pack_into("<I", data, sum_at, checksum)


def same_but_rows(left: Snapshot, right: Snapshot) -> bool:
    """Whether the header and all that the blob says of itself are equal."""
    first, second = parse_state_blob(left.blob), parse_state_blob(right.blob)
    return (
        left.header == right.header
        and first.ggml_type == second.ggml_type
        and sorted(first.positions) == sorted(second.positions)
        and [r.shape for r in (*first.keys, *first.values)]
        == [r.shape for r in (*second.keys, *second.values)]
    )


@pytest.mark.parametrize("sealed", [False, True])
def test_mutations_are_refused_or_change_nothing(sealed: bool) -> None:
    """10,000 of them: a named error, or the same snapshot. With a checksum that was made to fit,
    rows may differ, which nobody can see; everything that llama.cpp would act on must not."""
    rng = random.Random(2024 + sealed)
    original = sample()
    data = original.to_bytes()
    mutations: tuple[Mutation, ...] = (flip, truncate, insert, remove, duplicate, overwrite)
    accepted = 0
    errors: set[type[SnapshotError]] = set()
    for _ in range(FUZZ_CASES):
        mutated = bytearray(data)
        rng.choice(mutations)(rng, mutated)
        if sealed:
            reseal(mutated)
        try:
            read = Snapshot.from_bytes(bytes(mutated))
            check_snapshot(read, original.header)
        except SnapshotError as error:
            errors.add(type(error))
            assert str(error)
            continue
        accepted += 1
        assert same_but_rows(original, read) if sealed else same(original, read)
    assert len(errors) >= (12 if sealed else 4), errors
    assert sealed or accepted < 0.1 * FUZZ_CASES


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=600))
def test_any_bytes_with_the_right_beginning(data: bytes) -> None:
    start = snapshots.MAGIC + struct.pack("<I", snapshots.HEADER_VERSION)
    sealed = bytearray(start + data)
    reseal(sealed)
    try:
        check_snapshot(Snapshot.from_bytes(bytes(sealed)), sample_header())
    except SnapshotError:
        return
    raise AssertionError("random bytes were taken for a snapshot")
