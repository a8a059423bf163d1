from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from history_helpers import ROOT, computation, frame, turn
from hypothesis import given
from hypothesis import strategies as st

from edge_vlm_ros.history import (
    Epoch,
    FrameItem,
    Item,
    TextItem,
    TextRole,
    extend_identity,
    root_identity,
)
from edge_vlm_ros.history.grid import Grid


def blake(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=32).digest()


def length(n: int) -> bytes:
    return bytes([n]) + bytes(7)


def test_text_identity_is_the_digest_of_these_bytes() -> None:
    """Stored contexts name identities: the bytes may not change by accident."""
    expected = blake(
        length(4), b"text",
        length(6), b"parent",
        length(8), b"\x01\0\0\0" b"\xff\xff\xff\xff",
        length(8), b"\x02\0\0\0" b"\x02\0\0\0",
    )  # fmt: skip
    assert extend_identity(b"parent", turn(1, -1), None) == expected


def test_frame_identity_is_the_digest_of_these_bytes() -> None:
    expected = blake(
        length(5), b"frame",
        length(6), b"parent",
        length(4), b"\x01\0\0\0",
        length(6), b"pixels",
        length(8), b"\x02\0\0\0" b"\x03\0\0\0",
        length(8), b"\x07\0\0\0" b"\x06\0\0\0",
    )  # fmt: skip
    assert extend_identity(b"parent", frame(0), b"pixels") == expected


def test_root_identity_is_the_digest_of_these_bytes() -> None:
    expected = blake(length(17), b"edge_vlm_ros/root", length(2), b"ab", length(1), b"c")
    assert root_identity(b"ab", b"c") == expected


def test_roots_differ_by_how_their_parts_are_cut() -> None:
    roots = [
        root_identity(),
        root_identity(b""),
        root_identity(b"ab"),
        root_identity(b"ab", b""),
        root_identity(b"a", b"b"),
        root_identity(b"b", b"a"),
    ]
    assert len(set(roots)) == len(roots)


@pytest.mark.parametrize(
    "change",
    [
        {"frame_id": 5},
        {"stamp_ns": 5},
    ],
)
def test_what_a_frame_is_called_does_not_matter(change: dict[str, int]) -> None:
    assert extend_identity(ROOT, replace(frame(0), **change), b"c") == extend_identity(
        ROOT, frame(0), b"c"
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(frame(0), prefix=(4,)),
        replace(frame(0), suffix=(3, 2)),
        replace(frame(0), prefix=(1, 2), suffix=(3,)),
        replace(frame(0), n_embeddings=5),
        replace(frame(0), n_embedding_positions=4),
        replace(frame(0), grid=Grid(2, 2)),
        replace(frame(0), grid=Grid(1, 4)),
        replace(frame(0), prefix=(), n_embeddings=5),
    ],
)
def test_how_a_frame_is_wrapped_and_sized_matters(other: FrameItem) -> None:
    assert extend_identity(ROOT, other, b"c") != extend_identity(ROOT, frame(0), b"c")


def test_parent_and_content_matter() -> None:
    plain = extend_identity(ROOT, frame(0), b"c")
    assert extend_identity(ROOT, frame(0), b"d") != plain
    assert extend_identity(b"other", frame(0), b"c") != plain


def test_a_frame_needs_content_and_text_has_none() -> None:
    with pytest.raises(ValueError, match="frame 3 has no content digest"):
        extend_identity(ROOT, frame(3), None)
    with pytest.raises(ValueError, match="text item's content is its token ids"):
        extend_identity(ROOT, turn(1), b"c")


def test_the_purpose_of_a_text_is_not_part_of_the_computation() -> None:
    as_open = TextItem((1, 2), TextRole.OPEN)
    as_turn = TextItem((1, 2), TextRole.TURN, "hello")
    assert extend_identity(ROOT, as_open, None) == extend_identity(ROOT, as_turn, None)


def test_grouping_of_tokens_matters() -> None:
    once = chain([turn(1, 2)], {})
    twice = chain([turn(1), turn(2)], {})
    assert once != twice


# ---------------------------------------------------------------- equal iff the same computation
Described = tuple[list[Item], dict[int, bytes | None]]

wrappings = st.sampled_from([(), (1,), (2,), (1, 2)])
texts = st.builds(
    TextItem,
    st.sampled_from([(1,), (2,), (1, 2), (2, 1)]),
    st.sampled_from(TextRole),
    st.sampled_from(["", "a"]),
)
frames = st.builds(
    FrameItem,
    st.just(0),
    st.integers(0, 3),
    wrappings,
    wrappings,
    st.integers(1, 2),
    st.integers(1, 2),
)
contents_or_void = st.sampled_from([b"", b"c", b"d", None])


@st.composite
def described(draw: st.DrawFn) -> Described:
    items: list[Item] = []
    contents: dict[int, bytes | None] = {}
    ids = draw(st.permutations(range(4)))
    for frame_id in ids[: draw(st.integers(0, 4))]:
        if draw(st.booleans()):
            items.append(draw(texts))
        else:
            items.append(replace(draw(frames), frame_id=frame_id))
            contents[frame_id] = draw(contents_or_void)
    return items, contents


@st.composite
def disguised(draw: st.DrawFn, original: Described) -> Described:
    """The same computation under other names, with void frames put in and left out."""
    items: list[Item] = []
    contents: dict[int, bytes | None] = {}

    def add_void() -> None:
        if draw(st.booleans()):
            contents[len(items)] = None
            items.append(replace(draw(frames), frame_id=len(items)))

    for item in original[0]:
        add_void()
        if isinstance(item, TextItem):
            items.append(TextItem(item.tokens, draw(st.sampled_from(TextRole)), "other"))
        elif original[1][item.frame_id] is not None:
            contents[len(items)] = original[1][item.frame_id]
            items.append(replace(item, frame_id=len(items), stamp_ns=draw(st.integers(0, 9))))
    add_void()
    return items, contents


def chain(items: list[Item], contents: dict[int, bytes | None], root: bytes = ROOT) -> bytes:
    epoch = Epoch(0, root, items)
    epoch.advance(contents)
    return epoch.identity(len(items))


@given(described(), described(), st.sampled_from([ROOT, b"other root"]))
def test_identities_are_equal_iff_the_computations_are(
    one: Described, two: Described, root: bytes
) -> None:
    same = computation(ROOT, *one) == computation(root, *two)
    assert (chain(*one) == chain(*two, root)) == same


@given(st.data())
def test_identity_sees_through_names_roles_and_void_frames(data: st.DataObject) -> None:
    original = data.draw(described())
    other = data.draw(disguised(original))
    assert computation(ROOT, *original) == computation(ROOT, *other)
    assert chain(*original) == chain(*other)


@given(described(), texts | frames, st.integers(0, 3))
def test_any_exchanged_item_changes_the_identity(
    original: Described, item: Item, where: int
) -> None:
    items, contents = original
    if where >= len(items):
        return
    if isinstance(item, FrameItem):
        item = replace(item, frame_id=9)
    changed = [*items[:where], item, *items[where + 1 :]]
    with_new = {**contents, 9: b"c"}
    same = computation(ROOT, items, contents) == computation(ROOT, changed, with_new)
    assert (chain(items, contents) == chain(changed, with_new)) == same
