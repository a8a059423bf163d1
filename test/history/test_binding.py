from __future__ import annotations

import pytest
from history_helpers import make_history, outline, publish_all, see

from edge_vlm_ros.history import (
    BindingError,
    History,
    NewestPublished,
    NewestRegistered,
    Stamp,
    Version,
    VersionBinding,
    VersionState,
)


def context(history: History, version: Version) -> list[str]:
    return outline(history.epoch(version.epoch).items[: version.n])


# ---------------------------------------------------------------- newest registered
def test_newest_registered_sees_frames_still_to_be_encoded_and_none_after_it() -> None:
    history = make_history()
    see(history, 10)
    history.register_frame(20)
    version = history.bind(NewestRegistered())
    assert version == Version("table", 0, 3)
    assert history.state(version) is VersionState.REGISTERED
    see(history, 30)
    assert context(history, version) == ["open", "f0", "f1"]
    history.complete_frame(1, b"late")
    assert history.state(version) is VersionState.ENCODED


def test_newest_registered_of_an_empty_history_is_its_opening() -> None:
    assert make_history().bind(NewestRegistered()) == Version("table", 0, 1)


def test_newest_registered_after_a_rebuild_is_in_the_new_epoch() -> None:
    history = make_history(max_frames=3, keep_frames=1)
    see(history, 10, 20, 30, 40)
    assert context(history, history.bind(NewestRegistered())) == ["open", "f2", "f3"]


# ---------------------------------------------------------------- newest published
def test_newest_published_before_anything_is_published() -> None:
    history = make_history()
    see(history, 10)
    with pytest.raises(BindingError, match="no version of stream 'table' is published yet"):
        history.bind(NewestPublished())


def test_newest_published_does_not_wait() -> None:
    history = make_history()
    see(history, 10)
    publish_all(history)
    see(history, 20)
    assert history.bind(NewestPublished()) == Version("table", 0, 2)


def rebuilding() -> History:
    """Epoch 0 holds f0 f1 f2, published; epoch 1 started with f2 and f3 and is being computed."""
    history = make_history(max_frames=3, keep_frames=1)
    see(history, 10, 20, 30)
    publish_all(history)
    see(history, 40)
    assert outline(history.current.items) == ["open", "f2", "f3"]
    return history


def test_newest_published_during_a_rebuild_stays_with_the_epoch_before() -> None:
    history = rebuilding()
    assert history.bind(NewestPublished()) == Version("table", 0, 4)
    history.publish(Version("table", 1, 1))
    assert history.bind(NewestPublished()) == Version("table", 0, 4)
    history.publish(Version("table", 1, 2))  # all that was kept
    assert history.bind(NewestPublished()) == Version("table", 1, 2)


def test_newest_published_passes_over_an_epoch_that_was_replaced_half_computed() -> None:
    history = rebuilding()
    history.publish(Version("table", 1, 1))
    see(history, 50, 60)
    history.pop_retired()
    assert history.current.number == 2
    version = history.bind(NewestPublished())
    assert context(history, version) == ["open", "f0", "f1", "f2"]


def test_newest_published_takes_a_half_computed_epoch_when_there_is_nothing_else() -> None:
    history = make_history(max_frames=3, keep_frames=2)
    see(history, 10, 20, 30, 40)
    history.publish(Version("table", 1, 2))
    assert history.bind(NewestPublished()) == Version("table", 1, 2)
    see(history, 50)
    assert history.current.number == 2
    history.pop_retired()
    assert history.bind(NewestPublished()) == Version("table", 1, 2)


def test_of_several_half_computed_epochs_the_newest_stands_in() -> None:
    history = make_history(max_frames=3, keep_frames=2)
    see(history, 10, 20, 30, 40)
    history.publish(Version("table", 1, 2))
    see(history, 50)
    history.publish(Version("table", 2, 1))
    see(history, 60)
    assert history.current.number == 3
    assert history.bind(NewestPublished()) == Version("table", 2, 1)


def test_of_several_complete_epochs_the_newest_stands_in() -> None:
    history = rebuilding()
    publish_all(history)
    see(history, 50, 60)
    assert history.current.number == 2
    assert history.bind(NewestPublished()) == Version("table", 1, 3)
    # An engine may still be computing in the epoch that stands in.
    history.publish(Version("table", 1, 4))
    assert history.bind(NewestPublished()) == Version("table", 1, 4)


def test_newest_published_never_reaches_behind_a_reset() -> None:
    history = rebuilding()
    held = history.bind(NewestPublished())
    history.reset()
    with pytest.raises(BindingError, match="no version of stream 'table' is published yet"):
        history.bind(NewestPublished())
    publish_all(history)
    assert history.bind(NewestPublished()) == Version("table", 2, 1)
    assert context(history, held) == ["open", "f0", "f1", "f2"]


def test_newest_published_does_not_reach_behind_a_reset_after_a_rebuild_either() -> None:
    history = make_history(max_frames=3, keep_frames=1)
    see(history, 10)
    publish_all(history)
    history.bind(NewestPublished())
    history.reset()
    see(history, 20, 30, 40, 50)
    assert history.current.number == 2
    with pytest.raises(BindingError, match="is published yet"):
        history.bind(NewestPublished())


# ---------------------------------------------------------------- stamp
@pytest.mark.parametrize(
    ("stamp_ns", "n"),
    [(10, 2), (11, 2), (19, 2), (20, 4), (25, 4), (30, 5), (10**18, 5)],
)
def test_stamp_binds_to_the_newest_frame_that_is_not_later(stamp_ns: int, n: int) -> None:
    history = make_history()
    see(history, 10)
    history.append_turn((50,), "turn")
    see(history, 20)
    history.register_frame(30)
    history.append_turn((51,), "turn")
    assert history.bind(Stamp(stamp_ns)) == Version("table", 0, n)


def test_of_frames_with_equal_stamps_the_newest_counts() -> None:
    history = make_history()
    see(history, 10, 10, 20)
    assert history.bind(Stamp(10)) == Version("table", 0, 3)


def test_a_stamp_before_the_oldest_frame() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    with pytest.raises(BindingError, match="a stamp up to 9 ns: it has no frames"):
        history.bind(Stamp(9))
    see(history, 10)
    with pytest.raises(BindingError, match="a stamp up to 9 ns: the oldest has 10 ns"):
        history.bind(Stamp(9))
    see(history, 20, 30)  # a rebuild drops the frame of 10 ns
    with pytest.raises(BindingError, match="a stamp up to 19 ns: the oldest has 20 ns"):
        history.bind(Stamp(19))


# ---------------------------------------------------------------- explicit version
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_explicit_version(n: int) -> None:
    history = make_history()
    see(history, 10)
    history.register_frame(20)
    assert history.bind(VersionBinding(0, n)) == Version("table", 0, n)


@pytest.mark.parametrize("n", [-1, 3])
def test_a_version_that_does_not_exist(n: int) -> None:
    history = make_history()
    see(history, 10)
    with pytest.raises(BindingError, match=f"version {n} of stream 'table' does not exist: epoch 0 "
                       "has versions 0 to 2"):  # fmt: skip
        history.bind(VersionBinding(0, n))


def test_a_version_of_an_older_epoch_while_somebody_holds_it() -> None:
    history = make_history(max_frames=2, keep_frames=1)
    see(history, 10, 20)
    held = history.bind(NewestRegistered())
    see(history, 30)
    publish_all(history)
    history.pop_retired()
    assert context(history, history.bind(VersionBinding(0, 2))) == ["open", "f0"]
    history.release(held)
    history.release(Version("table", 0, 2))
    history.pop_retired()
    with pytest.raises(
        BindingError,
        match="epoch 0 of stream 'table' is not available: the current one is 1",
    ):
        history.bind(VersionBinding(0, 2))


def test_an_explicit_version_never_reaches_behind_a_reset() -> None:
    history = make_history()
    see(history, 10)
    history.bind(NewestRegistered())
    history.reset()
    with pytest.raises(BindingError, match="epoch 0 of stream 'table' is not available"):
        history.bind(VersionBinding(0, 2))


def test_a_failed_binding_holds_nothing() -> None:
    history = make_history()
    with pytest.raises(BindingError):
        history.bind(VersionBinding(0, 9))
    with pytest.raises(ValueError, match="table@0.9 is not held"):
        history.release(Version("table", 0, 9))


# ---------------------------------------------------------------- holding and releasing
def test_a_version_is_held_as_often_as_it_is_bound() -> None:
    history = make_history()
    see(history, 10)
    version = history.bind(NewestRegistered())
    history.bind(NewestRegistered())
    history.release(version)
    history.release(version)
    with pytest.raises(ValueError, match="table@0.2 is not held"):
        history.release(version)
