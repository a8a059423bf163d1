"""The next epoch is known before it begins, and is given up where it comes otherwise."""

from __future__ import annotations

import pytest
from history_helpers import make_history, outline, publish_all, see

from edge_vlm_ros.history import BindingError, History, NewestPublished, Version, VersionBinding


def ahead(history: History) -> list[str]:
    assert history.successor is not None
    return outline(history.successor.items)


def current(history: History) -> list[str]:
    return outline(history.current.items)


def test_frames_that_will_be_kept_are_in_the_successor() -> None:
    history = make_history(max_frames=5, keep_frames=2)
    see(history, 1, 2, 3)
    assert history.successor is None
    see(history, 4)
    assert ahead(history) == ["open", "f3"]
    see(history, 5)
    assert ahead(history) == ["open", "f3", "f4"]
    assert history.successor is not None and history.successor.encoded_n == 3


def test_it_is_the_next_epoch_with_what_was_computed_of_it() -> None:
    history = make_history(max_frames=4, keep_frames=2)
    see(history, 1, 2, 3, 4)
    publish_all(history)
    successor = history.successor
    assert successor is not None
    history.publish(Version("table", successor.number, 3))
    see(history, 5)
    assert history.current is successor
    assert current(history) == ["open", "f2", "f3", "f4"]
    assert (history.current.number, history.current.published_n) == (1, 0), "it may be lost again"
    assert history.bind(NewestPublished()) == Version("table", 0, 5)
    history.release(Version("table", 0, 5))
    history.publish(Version("table", 1, 3))
    assert history.current.caught_up, "the frame that has just come is no part of the rebuild"
    assert history.bind(NewestPublished()) == Version("table", 1, 3)
    history.release(Version("table", 1, 3))
    assert [epoch.number for epoch in history.pop_retired()] == [0]


def test_what_was_not_computed_of_it_must_be_caught_up_with() -> None:
    history = make_history(max_frames=4, keep_frames=2)
    see(history, 1, 2, 3, 4)
    publish_all(history)
    see(history, 5)
    history.publish(Version("table", 1, 2))
    assert not history.current.caught_up
    assert history.bind(NewestPublished()) == Version("table", 0, 5)


def test_more_than_half_may_be_kept() -> None:
    history = make_history(max_frames=4, keep_frames=3)
    see(history, 1, 2, 3, 4, 5)
    assert current(history) == ["open", "f1", "f2", "f3", "f4"]
    assert ahead(history) == ["open", "f2", "f3", "f4"]
    assert (history.current.number, history.epochs[-1]) == (1, history.current)


def test_turns_are_kept_in_their_order() -> None:
    history = make_history(max_frames=4, keep_frames=2, max_turns=2)
    see(history, 1)
    history.append_turn((60,), "a")
    see(history, 2, 3)
    history.append_turn((61,), "b")
    successor = history.successor
    assert ahead(history) == ["open", "t60", "f2", "t61"]
    see(history, 4, 5)
    assert history.current is successor
    assert current(history) == ["open", "t60", "f2", "t61", "f3", "f4"]


def test_a_turn_that_pushes_out_another_ends_it() -> None:
    history = make_history(max_frames=4, keep_frames=2, max_turns=1)
    history.append_turn((60,), "a")
    see(history, 1, 2, 3)
    before = history.successor
    assert before is not None and ahead(history) == ["open", "t60", "f2"]
    history.append_turn((61,), "b")
    assert history.successor is None
    see(history, 4)
    assert history.successor is None, "it would end again with the next turn"
    see(history, 5)
    assert current(history) == ["open", "f2", "t61", "f3", "f4"]
    assert history.current.number > before.number, "what was computed of it is something else"
    assert history.pop_given_up() == [before]
    assert history.pop_given_up() == []


def test_a_frame_that_cannot_be_encoded_ends_it() -> None:
    history = make_history(max_frames=4, keep_frames=2)
    see(history, 1, 2)
    failing, _ = history.register_frame(3)
    assert ahead(history) == ["open", "f2"]
    history.void_frame(failing.frame_id)
    see(history, 4, 5)
    assert history.successor is None
    see(history, 6)
    assert current(history) == ["open", "f3", "f4", "f5"]


def test_the_only_frame_that_cannot_be_encoded_ends_it() -> None:
    history = make_history(max_frames=4, keep_frames=2)
    see(history, 1, 2)
    failing, _ = history.register_frame(3)
    history.void_frame(failing.frame_id)
    assert history.successor is None


def test_tokens_may_fill_an_epoch_before_frames_do() -> None:
    history = make_history(max_frames=6, keep_frames=3, max_turns=0, max_tokens=2 + 5 * 7)
    see(history, 1, 2)
    assert history.successor is None
    see(history, 3, 4, 5)
    successor = history.successor
    assert ahead(history) == ["open", "f2", "f3", "f4"]
    see(history, 6)
    assert history.current is successor


def test_a_turn_that_takes_the_room_of_a_frame_ends_it() -> None:
    history = make_history(max_frames=6, keep_frames=3, max_tokens=2 + 5 * 7)
    see(history, 1, 2, 3)
    assert ahead(history) == ["open", "f2"]
    history.append_turn((60, 61), "a")
    assert history.successor is None
    see(history, 4, 5)
    assert current(history) == ["open", "f1", "f2", "t60", "f3", "f4"]


@pytest.mark.parametrize("limits", [{"keep_frames": 0}, {"policy": "reject"}])
def test_there_is_none_where_nothing_is_kept(limits: dict[str, object]) -> None:
    history = make_history(max_frames=3, **{"keep_frames": 1, **limits})  # type: ignore[arg-type]
    see(history, 1, 2, 3)
    assert history.successor is None


def test_nothing_is_bound_to_it_before_it_is_the_current_epoch() -> None:
    history = make_history(max_frames=3, keep_frames=1)
    see(history, 1, 2, 3)
    assert history.successor is not None
    binding = VersionBinding(history.successor.number, 2)
    with pytest.raises(BindingError, match="is not available"):
        history.bind(binding)
    see(history, 4)
    assert history.bind(binding) == Version("table", 1, 2)
