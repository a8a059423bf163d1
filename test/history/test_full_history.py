from __future__ import annotations

import pytest
from history_helpers import make_history, outline, publish_all, see

from edge_vlm_ros.history import (
    History,
    HistoryFull,
    HistoryLimits,
    NewestRegistered,
    Stamp,
    Version,
    VersionState,
)
from edge_vlm_ros.history.history import VOID_FRAMES_PER_FRAME


def say(history: History, *first_tokens: int, n_tokens: int = 1) -> None:
    for token in first_tokens:
        history.append_turn((token,) * n_tokens, "turn")


# ---------------------------------------------------------------- drop_oldest, by frames
def test_twelve_frames_of_which_six_are_kept_are_seven_after_the_thirteenth() -> None:
    history = make_history(max_frames=12, keep_frames=6)
    see(history, *range(12))
    assert history.current.number == 0
    registered, version = history.register_frame(12)
    assert registered.frame_id == 12
    assert outline(history.current.items) == [
        "open", "f6", "f7", "f8", "f9", "f10", "f11", "f12",
    ]  # fmt: skip
    assert (version.epoch, version.n) == (1, 8)


def test_what_was_encoded_is_encoded_in_the_new_epoch_at_once() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 10, 20)
    history.register_frame(30)
    assert history.newest(VersionState.ENCODED).n == 2  # open, f1
    assert history.current.tokens(2) == 2 + 7
    assert history.newest(VersionState.PUBLISHED).n == 0


def test_frames_still_to_be_encoded_are_kept_and_completed_in_both_epochs() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 10)
    history.register_frame(20)
    held = history.bind(NewestRegistered())
    history.register_frame(30)
    assert outline(history.current.items) == ["open", "f1", "f2"]
    history.complete_frame(1, b"one")
    assert history.state(held) is VersionState.ENCODED
    assert history.current.encoded_n == 2


def test_a_frame_voided_after_a_rebuild_is_void_in_both_epochs() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 10)
    history.register_frame(20)
    history.register_frame(30)
    history.void_frame(1)
    history.complete_frame(2, b"two")
    assert outline(history.epoch(0).computed(0, 3)) == ["open", "f0"]
    assert outline(history.current.computed(0, 3)) == ["open", "f2"]


def test_keeping_no_frame_leaves_only_the_new_one() -> None:
    history = make_history(max_frames=2, keep_frames=0)
    see(history, 10, 20, 30)
    assert outline(history.current.items) == ["open", "f2"]


def test_void_frames_neither_count_nor_are_kept() -> None:
    history = make_history(max_frames=3, keep_frames=2)
    see(history, 10)
    for stamp_ns in (20, 30, 40):
        registered, _ = history.register_frame(stamp_ns)
        history.void_frame(registered.frame_id)
    see(history, 50, 60)
    assert history.current.number == 0
    see(history, 70)
    assert outline(history.current.items) == ["open", "f4", "f5", "f6"]


# ---------------------------------------------------------------- drop_oldest, turns
def test_turns_keep_their_places_among_the_kept_frames() -> None:
    history = make_history(max_frames=3, keep_frames=2, max_turns=3)
    see(history, 10)
    say(history, 50)
    see(history, 20)
    say(history, 51)
    see(history, 30)
    say(history, 52)
    see(history, 40)
    assert outline(history.current.items) == ["open", "t50", "f1", "t51", "f2", "t52", "f3"]


def test_older_turns_stay_at_the_front_up_to_max_turns() -> None:
    history = make_history(max_frames=3, keep_frames=1, max_turns=2)
    say(history, 50)
    see(history, 10)
    say(history, 51)
    see(history, 20, 30)
    say(history, 52)
    see(history, 40)
    assert outline(history.current.items) == ["open", "t51", "f2", "t52", "f3"]


def test_without_turns_to_keep_only_frames_are_kept() -> None:
    history = make_history(max_frames=2, keep_frames=1, max_turns=0)
    see(history, 10, 20)
    say(history, 50)
    see(history, 30)
    assert outline(history.current.items) == ["open", "f1", "f2"]


def test_equal_turns_are_different_turns() -> None:
    history = make_history(max_tokens=2 + 7 + 2 + 2 + 2, max_turns=9)
    say(history, 50, n_tokens=2)
    see(history, 10)
    say(history, 50, 50, n_tokens=2)
    say(history, 51, n_tokens=1)
    assert outline(history.current.items) == ["open", "f0", "t50", "t50", "t51"]


# ---------------------------------------------------------------- drop_oldest, by tokens
def test_the_limit_itself_still_fits() -> None:
    history = make_history(max_tokens=2 + 7 + 7)
    see(history, 10, 20)
    assert history.current.number == 0
    assert history.current.registered_tokens == 16


def test_tokens_drop_turns_before_frames_oldest_first() -> None:
    history = make_history(max_tokens=2 + 7 + 7 + 3 + 3, max_turns=9)
    say(history, 50, n_tokens=3)
    see(history, 10, 20)
    say(history, 51, n_tokens=3)
    assert history.current.number == 0
    say(history, 52, n_tokens=3)
    assert outline(history.current.items) == ["open", "f0", "f1", "t51", "t52"]
    see(history, 30)  # both turns go, then f0
    assert outline(history.current.items) == ["open", "f1", "f2"]
    assert history.current.registered_tokens == 16


def test_pending_frames_count_against_the_token_limit() -> None:
    history = make_history(max_tokens=2 + 7 + 7)
    for stamp_ns in (10, 20, 30):
        history.register_frame(stamp_ns)
        assert history.current.registered_tokens <= 16
    assert outline(history.current.items) == ["open", "f1", "f2"]


def test_an_item_that_just_fits_into_an_empty_history_displaces_everything() -> None:
    history = make_history(max_tokens=20)
    see(history, 10)
    say(history, 50, n_tokens=18)
    assert outline(history.current.items) == ["open", "t50"]


def test_an_item_that_never_fits_is_refused_and_nothing_changes() -> None:
    history = make_history(max_tokens=20)
    see(history, 10)
    before = history.current
    with pytest.raises(
        HistoryFull, match="an item of 19 tokens never fits into a history of 20 tokens"
    ):
        say(history, 50, n_tokens=19)
    assert history.current is before
    assert outline(before.items) == ["open", "f0"]


# ---------------------------------------------------------------- reject
def test_reject_refuses_frames_beyond_max_frames_and_nothing_changes() -> None:
    history = make_history(max_frames=2, keep_frames=1, policy="reject")
    see(history, 10, 20)
    with pytest.raises(HistoryFull, match=r"'table' is full \(2 frames or 1000 tokens\).*reject"):
        history.register_frame(30)
    assert history.current.number == 0
    assert outline(history.current.items) == ["open", "f0", "f1"]


def test_reject_still_takes_turns_that_fit() -> None:
    history = make_history(max_tokens=2 + 7 + 3, max_frames=1, keep_frames=0, policy="reject")
    see(history, 10)
    say(history, 50, n_tokens=3)
    assert outline(history.current.items) == ["open", "f0", "t50"]
    with pytest.raises(HistoryFull):
        say(history, 51)


def test_a_refused_frame_takes_no_number_and_a_void_one_makes_room() -> None:
    history = make_history(max_frames=2, keep_frames=1, policy="reject")
    see(history, 10)
    history.register_frame(20)
    with pytest.raises(HistoryFull):
        history.register_frame(30)
    history.void_frame(1)
    registered, _ = history.register_frame(40)
    assert registered.frame_id == 2
    assert outline(history.current.items) == ["open", "f0", "f1", "f2"]


def test_a_reset_makes_room() -> None:
    history = make_history(max_frames=1, keep_frames=0, policy="reject")
    see(history, 10)
    version = history.reset()
    assert (version.epoch, version.n) == (1, 1)
    see(history, 20)
    assert outline(history.current.items) == ["open", "f1"]


# ---------------------------------------------------------------- limits
@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ((0, 1, 0, 0), "max_tokens and max_frames must be at least 1"),
        ((1, 0, 0, 0), "max_tokens and max_frames must be at least 1"),
        ((1, 1, 0, -1), "max_turns at least 0"),
        ((1, 3, 3, 0), r"keep_frames \(3\) must be at least 0 and below max_frames \(3\)"),
        ((1, 3, -1, 0), r"keep_frames \(-1\) must be at least 0"),
        ((1, 1, 0, 0, "drop"), "unknown policy 'drop': use drop_oldest or reject"),
    ],
)
def test_limits_that_contradict_each_other(limits: tuple[int, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        HistoryLimits(*limits)


def test_the_smallest_limits() -> None:
    limits = HistoryLimits(1, 1, 0, 0)
    assert limits.policy == "drop_oldest"


def test_void_frames_do_not_pile_up() -> None:
    """A stream whose frames are all dropped stays bounded, and keeps what it has seen."""
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 1)
    for stamp_ns in range(2, 40):
        dropped, _ = history.register_frame(stamp_ns)
        history.void_frame(dropped.frame_id)
        publish_all(history)
        history.pop_retired()
        assert len(history.current) <= 2 + VOID_FRAMES_PER_FRAME * 2
    assert history.current.number > 0
    assert [f.stamp_ns for f in history.current.frames(len(history.current))] == [1]


def test_a_stamp_never_names_a_void_frame() -> None:
    history = make_history()
    see(history, 10)
    dropped, _ = history.register_frame(20)
    history.void_frame(dropped.frame_id)
    assert history.bind(Stamp(25)).n == 2  # open and the frame of 10


def test_a_frame_must_wait_while_a_rebuild_has_not_caught_up() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 1, 2)
    assert history.must_wait(), "nothing of the first epoch is published"
    publish_all(history)
    assert not history.must_wait()
    see(history, 3)  # rebuilt: open, frame 2, frame 3
    assert history.must_wait(), "full again, and the kept frame is not computed yet"
    history.publish(Version("table", 1, 1))
    assert history.must_wait()
    history.publish(Version("table", 1, 2))
    assert not history.must_wait()


def test_nobody_waits_where_nothing_is_rebuilt() -> None:
    roomy = make_history()
    see(roomy, 1)
    assert not roomy.must_wait()
    rejecting = make_history(max_frames=1, keep_frames=0, policy="reject")
    see(rejecting, 1)
    assert not rejecting.must_wait()
