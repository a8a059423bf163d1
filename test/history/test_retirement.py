from __future__ import annotations

import pytest
from history_helpers import make_history, outline, publish_all, see

from edge_vlm_ros.history import (
    History,
    NewestPublished,
    Version,
    VersionBinding,
    VersionState,
)


def numbers(history: History) -> list[int]:
    return [epoch.number for epoch in history.epochs]


def rebuilt() -> History:
    """Epoch 0: open f0 f1, published. Epoch 1: open f1 f2, nothing published."""
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 10, 20)
    publish_all(history)
    see(history, 30)
    return history


def test_a_published_epoch_stays_until_the_next_has_caught_up() -> None:
    history = rebuilt()
    assert history.pop_retired() == []
    history.publish(Version("table", 1, 1))
    assert history.pop_retired() == []
    history.publish(Version("table", 1, 2))
    assert [epoch.number for epoch in history.pop_retired()] == [0]
    assert history.epochs == (history.current,)


def test_an_epoch_that_was_never_published_goes_at_once() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 10, 20, 30)
    assert [epoch.number for epoch in history.pop_retired()] == [0]


def test_a_reset_lets_go_of_everything_that_is_not_held() -> None:
    history = rebuilt()
    assert history.successor is not None
    prepared = history.successor
    history.reset()
    assert [epoch.number for epoch in history.pop_retired()] == [0, 1]
    assert history.pop_given_up() == [prepared] and history.successor is None


def test_a_reader_keeps_its_epoch_and_its_frames() -> None:
    history = rebuilt()
    version = history.bind(VersionBinding(0, 3))
    history.reset()
    assert [epoch.number for epoch in history.pop_retired()] == [1]
    assert history.live_frames() == {0, 1}
    assert outline(history.epoch(0).computed(0, version.n)) == ["open", "f0", "f1"]
    assert history.content(0) == b"content 0"
    history.release(version)
    assert [epoch.number for epoch in history.pop_retired()] == [0]
    assert history.live_frames() == set()


def test_contents_go_with_the_last_epoch_that_has_the_frame() -> None:
    history = rebuilt()
    publish_all(history)
    history.pop_retired()
    with pytest.raises(KeyError, match="frame 0 of stream 'table' has no content"):
        history.content(0)
    assert history.content(1) == b"content 1"


def test_without_readers_at_most_two_epochs_live_however_often_it_is_rebuilt() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 10)
    publish_all(history)
    for stamp_ns in range(20, 60):
        see(history, stamp_ns)
        history.publish(Version("table", history.current.number, 1))
        history.pop_retired()
        assert len(history.epochs) <= 2
    assert history.current.number > 10
    assert numbers(history) == [0, history.current.number]


def test_a_frame_completed_after_its_last_epoch_is_gone_is_ignored() -> None:
    history = make_history()
    history.register_frame(10)
    history.register_frame(20)
    history.reset()
    history.pop_retired()
    history.complete_frame(0, b"late")
    history.void_frame(1)
    see(history, 30)
    assert history.newest(VersionState.ENCODED) == Version("table", 1, 2)


def test_publishing_in_an_epoch_that_is_gone_is_ignored() -> None:
    history = make_history()
    history.reset()
    history.pop_retired()
    history.publish(Version("table", 0, 1))
    assert history.newest(VersionState.PUBLISHED) == Version("table", 1, 0)


def test_an_epoch_that_is_gone_is_a_key_error() -> None:
    history = make_history()
    history.reset()
    history.pop_retired()
    with pytest.raises(KeyError):
        history.epoch(0)
    with pytest.raises(KeyError):
        history.state(Version("table", 0, 0))


# ---------------------------------------------------------------- what engines must still compute
def test_needed_versions() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 10, 20)
    old = history.current
    assert history.needed_n(old) == 3
    history.publish(Version("table", 0, 2))
    see(history, 30)
    assert history.needed_n(history.current) == 3
    assert history.needed_n(old) == 2  # for the newest published version, during the rebuild
    early = history.bind(VersionBinding(0, 1))
    assert history.needed_n(old) == 2
    waiting = history.bind(VersionBinding(0, 3))
    assert history.needed_n(old) == 3
    history.release(waiting)
    publish_all(history)
    assert history.needed_n(old) == 1  # the rebuild is over: only the early reader is left
    history.release(early)


def test_all_that_is_registered_in_the_current_epoch_is_needed() -> None:
    history = make_history()
    see(history, 10)
    history.register_frame(20)
    assert history.needed_n(history.current) == 3


def test_needed_version_of_the_stand_in_can_still_be_bound() -> None:
    history = rebuilt()
    history.bind(VersionBinding(0, 1))
    bound = history.bind(NewestPublished())
    history.release(bound)
    assert bound.n <= history.needed_n(history.epoch(0))


# ---------------------------------------------------------------- settling frames
def test_a_frame_is_settled_once() -> None:
    history = make_history()
    see(history, 10)
    history.register_frame(20)
    history.void_frame(1)
    for frame_id in (0, 1):
        with pytest.raises(ValueError, match=f"frame {frame_id} of stream 'table' is settled"):
            history.complete_frame(frame_id, b"again")
        with pytest.raises(ValueError, match=f"frame {frame_id} of stream 'table' is settled"):
            history.void_frame(frame_id)
    # A refused call leaves nothing behind.
    assert outline(history.current.computed(0, 3)) == ["open", "f0"]
    assert history.content(0) == b"content 0"


def test_voiding_a_frame_that_is_not_there_does_not_touch_a_later_one() -> None:
    history = make_history()
    history.void_frame(0)
    see(history, 10)
    assert outline(history.current.computed(0, 2)) == ["open", "f0"]
    assert outline(history.current.frames(2)) == ["f0"]


def test_void_and_pending_frames_have_no_content() -> None:
    history = make_history()
    history.register_frame(10)
    history.register_frame(20)
    history.void_frame(0)
    for frame_id in (0, 1):
        with pytest.raises(KeyError, match=f"frame {frame_id} of stream 'table' has no content"):
            history.content(frame_id)
