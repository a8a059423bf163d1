"""The endless table of the demo cameras."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vlm_ros.demo.stream import MAX_EVENT_RATE, TableStream
from edge_vlm_ros.demo.world import MAX_FRAMES

seeds = st.integers(0, 10_000)


def small(seed: int, **options: float) -> TableStream:
    return TableStream(seed, width=32, height=32, **options)  # type: ignore[arg-type]


@settings(max_examples=50)
@given(seed=seeds, start=st.integers(0, 5000), rate=st.floats(0, MAX_EVENT_RATE))
def test_one_event_per_object_in_a_context(seed: int, start: int, rate: float) -> None:
    stream = small(seed, event_rate=rate)
    for first in range(start, start + 40):
        window = stream.window(first, first + MAX_FRAMES)
        assert len({e.obj for e in window.events}) == len(window.events) <= 6
        assert len(window.present()) <= 5


@settings(max_examples=20)
@given(seed=seeds, order=st.permutations([0, 5, 1500, 2999]))
def test_the_order_of_looking_changes_nothing(seed: int, order: list[int]) -> None:
    looked, fresh = small(seed), small(seed)
    pictures = {k: looked.frame(k) for k in order}
    for k in sorted(order):
        np.testing.assert_array_equal(pictures[k], fresh.frame(k))
    assert looked.window(0, 3000) == fresh.window(0, 3000)


def test_the_demo_stays_interesting() -> None:
    stream = small(7)
    on_table = [len(stream.window(k, k + 1).present()) for k in range(3000)]
    events = len(stream.window(0, 3000).events)
    assert np.mean(on_table[50:]) > 2.5
    assert 3 < 3000 / events < 6  # frames from one event to the next


def test_truth_is_for_the_window() -> None:
    stream = small(3)
    rng = random.Random(1)
    answers = set()
    for start in range(0, 400, 10):
        question = stream.ask_about(start, start + 12, rng, "change")
        assert question is not None
        truth = stream.truth(question, start, start + 12)
        assert truth == question.answer(stream.window(start, start + 12))
        assert truth is not None
        answers.add(truth)
    assert len(answers) > 20


def test_pictures_belong_to_the_stream() -> None:
    stream = TableStream(2, width=224, height=224)
    assert stream.frame(4).shape == (224, 224, 3)
    with pytest.raises(IndexError):
        stream.frame(-1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"event_rate": 0.5}, "event_rate"),
        ({"event_rate": -0.1}, "event_rate"),
        ({"min_objects": 6}, "min_objects"),
    ],
)
def test_impossible_streams_are_refused(options: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        small(0, **options)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed"):
        small(-1)
