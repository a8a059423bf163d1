"""Pieces of bytes become whole characters, and no part of a stop string is ever shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vlm_ros.engines.text_stream import TextStream

TEXT = "aé€😀z"


def shown(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    stream = TextStream(stop)
    parts = [stream.push(piece) for piece in pieces]
    return [*parts, stream.finish()], stream.stopped


def cut_at_first_stop(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """Read character by character: the first moment at which the text ends in a stop string."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stop if s and text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@pytest.mark.parametrize("at", range(len(TEXT.encode()) + 1))
def test_a_character_cut_at_any_byte_stays_whole(at: int) -> None:
    data = TEXT.encode()
    parts, stopped = shown([data[:at], data[at:]])
    assert "".join(parts) == TEXT
    assert "\ufffd" not in "".join(parts)
    assert not stopped


def test_an_incomplete_character_waits_for_the_rest() -> None:
    stream = TextStream()
    assert stream.push(b"a\xe2\x82") == "a"
    assert stream.push(b"\xac!") == "€!"
    assert stream.finish() == ""


def test_a_character_that_never_ends_is_replaced_at_the_end() -> None:
    assert shown([b"ok\xf0\x9f"]) == (["ok", "\ufffd"], False)


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert "".join(shown([b"a\xff", b"\xfeb"])[0]) == "a\ufffd\ufffdb"


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    stream = TextStream(("STOP",))
    assert [stream.push(p) for p in (b"go ST", b"O", b"P on")] == ["go ", "", ""]
    assert stream.stopped
    assert stream.push(b"more") == ""
    assert stream.finish() == ""


def test_what_was_held_back_is_shown_when_it_was_no_stop_string() -> None:
    stream = TextStream(("STOP",))
    assert [stream.push(p) for p in (b"ST", b"O", b"RM")] == ["", "", "STORM"]
    assert not stream.stopped


def test_what_is_still_held_back_at_the_end_is_shown_then() -> None:
    assert shown([b"a\n"], ("\n\n",)) == (["a", "\n"], False)


def test_a_stop_string_that_begins_again_inside_itself() -> None:
    assert shown([b"aaa", b"b"], ("aab",)) == (["a", "", ""], True)


@pytest.mark.parametrize("pieces", [[b"xabcd"], [b"xa", b"b", b"cd"], [b"xab", b"cd"]])
def test_of_overlapping_stop_strings_the_one_complete_first_counts(pieces: list[bytes]) -> None:
    parts, stopped = shown(pieces, ("abcd", "b"))
    assert ("".join(parts), stopped) == ("xa", True)


def test_of_two_complete_at_once_the_longer_counts() -> None:
    assert "".join(shown([b"xabc"], ("bc", "abc"))[0]) == "x"


def test_an_empty_stop_string_is_none() -> None:
    assert shown([b"ab"], ("",)) == (["ab", ""], False)


def test_a_stop_string_of_several_bytes_a_character() -> None:
    data = "né€n".encode()
    parts, stopped = shown([bytes([b]) for b in data], ("é€",))
    assert ("".join(parts), stopped) == ("n", True)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab€😀", max_size=12),
    stop=st.lists(st.text("ab€", max_size=3), max_size=3).map(tuple),
    cuts=st.lists(st.integers(0, 40), max_size=8),
)
def test_any_text_in_any_pieces(text: str, stop: tuple[str, ...], cuts: list[int]) -> None:
    data = text.encode()
    places = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    pieces = [data[a:b] for a, b in zip(places, places[1:], strict=False)]
    expected, stops = cut_at_first_stop(text, stop)
    parts, stopped = shown(pieces, stop)
    assert ("".join(parts), stopped) == (expected, stops)
    for n in range(len(parts)):
        assert expected.startswith("".join(parts[:n]))  # nothing shown is taken back


@given(pieces=st.lists(st.binary(max_size=4), max_size=6))
def test_any_bytes_give_what_decoding_them_at_once_gives(pieces: list[bytes]) -> None:
    assert "".join(shown(pieces)[0]) == b"".join(pieces).decode("utf-8", "replace")
