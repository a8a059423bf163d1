"""How the answers of a decode step are divided among native calls."""

from __future__ import annotations

import pytest

from edge_vlm_ros.engines.decode_calls import DecodeCalls, divide

PLAIN = {1: 28.0, 2: 83.0, 3: 97.0, 4: 106.0, 5: 146.0, 6: 157.0, 7: 172.0, 8: 163.0}
"""Milliseconds measured with llama.cpp's plain Q8_0 kernels on one core, 0.5B."""


def test_calls_that_take_least_are_chosen_if_that_is_worth_it() -> None:
    divided = divide(8, PLAIN)
    assert divided[:4] == [(0,), (1,), (1, 1), (1, 1, 1)]
    assert divided[4:] == [(4,), (5,), (6,), (7,), (8,)], "less than a tenth would be saved"
    even = {n: 10.0 + n for n in range(1, 9)}
    assert divide(8, even) == [(n,) for n in range(9)]
    cheap = {1: 1.0, 4: 2.0, 5: 9.0, 9: 99.0}
    assert sorted(divide(9, cheap)[5]) == [1, 4]
    assert sorted(divide(9, cheap)[9]) == [1, 4, 4]


def test_sizes_that_were_never_seen_are_one_call() -> None:
    assert divide(3, {}) == [(0,), (1,), (2,), (3,)]
    assert divide(3, {1: 1.0, 2: 9.0}) == [(0,), (1,), (1, 1), (3,)]
    assert divide(2, {2: 9.0}) == [(0,), (1,), (2,)]


def _seen(calls: DecodeCalls, call_ms: dict[int, float], times: int = 3) -> None:
    for _ in range(times):
        for size, milliseconds in call_ms.items():
            calls.note(size, milliseconds)


def test_an_engine_divides_once_it_has_seen_enough() -> None:
    calls = DecodeCalls()
    assert calls.sizes(2) == (2,)
    _seen(calls, PLAIN, times=2)
    assert calls.sizes(2) == (2,)
    _seen(calls, PLAIN, times=1)
    assert calls.sizes(2) == (1, 1)
    assert calls.sizes(8) == (8,)


def test_one_slow_call_changes_nothing() -> None:
    calls = DecodeCalls()
    _seen(calls, PLAIN)
    calls.note(1, 5000.0)
    assert {calls.sizes(2) for _ in range(40)} == {(1, 1)}


@pytest.mark.parametrize("n", [2, 3])
def test_what_has_changed_is_found_out(n: int) -> None:
    """The rest of the machine had slowed down all but the small calls."""
    calls = DecodeCalls()
    _seen(calls, PLAIN)
    whole = {size: 30.0 + size for size in PLAIN}
    made = []
    for _ in range(2000):
        sizes = calls.sizes(n)
        made.append(sizes)
        for size in sizes:
            calls.note(size, whole[size])
    assert made[0] == (1,) * n and made[-1] == (n,)
