"""Numbers on command lines: a wrong one is told the allowed range."""

from __future__ import annotations

import argparse

import pytest

from edge_vlm_ros.cli.numbers import seconds, whole_number


def test_both_ends_of_a_range_are_allowed() -> None:
    assert [whole_number(2, 9)(text) for text in ("2", "9")] == [2, 9]
    assert whole_number(0)(str(10**30)) == 10**30
    assert seconds(1e9)("0.5") == 0.5


@pytest.mark.parametrize("text", ["1", "10", "many", "2.5", "", "nan"])
def test_what_is_no_such_whole_number(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        whole_number(2, 9)(text)
    assert str(raised.value) == f"must be a whole number from 2 to 9, not {text}"


def test_without_an_upper_end_none_is_told() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="number of 1 or more, not 0"):
        whole_number(1)("0")


@pytest.mark.parametrize("text", ["0", "-1", "1e9", "inf", "nan", "soon"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        seconds(1e9)(text)
    assert str(raised.value) == (
        f"must be a number of seconds above 0 and below 1000000000, not {text}"
    )
