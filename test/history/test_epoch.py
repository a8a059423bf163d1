from __future__ import annotations

import pytest
from history_helpers import OPEN, ROOT, frame, turn

from edge_vlm_ros.history import Epoch, VersionState, extend_identity


def epoch_of_five() -> Epoch:
    """open, f0, t50 (3 tokens), f1, f2"""
    return Epoch(4, ROOT, [OPEN, frame(0), turn(50, 51, 52), frame(1), frame(2)])


def test_items_are_registered_first_and_text_is_encoded_at_once() -> None:
    epoch = Epoch(0, ROOT)
    assert epoch.append(OPEN) == 1
    assert epoch.encoded_n == 0
    epoch.advance({})
    assert epoch.append(frame(0)) == 2
    epoch.advance({})
    assert (len(epoch), epoch.encoded_n, epoch.published_n) == (2, 1, 0)
    assert epoch.items == (OPEN, frame(0))


def test_the_list_an_epoch_starts_from_stays_the_callers() -> None:
    kept = [OPEN]
    epoch = Epoch(0, ROOT, kept)
    epoch.append(frame(0))
    assert kept == [OPEN]
    kept.clear()
    assert epoch.items == (OPEN, frame(0))


def test_frames_complete_in_any_order_and_versions_in_order_only() -> None:
    epoch = epoch_of_five()
    epoch.advance({1: b"one"})
    assert epoch.encoded_n == 1  # f0 is missing
    epoch.advance({1: b"one", 0: b"zero"})
    assert epoch.encoded_n == 4  # open, f0, t50, f1
    epoch.advance({1: b"one", 0: b"zero", 2: b"two"})
    assert epoch.encoded_n == 5


def test_tokens_and_positions_add_up() -> None:
    epoch = epoch_of_five()
    epoch.advance({0: b"zero", 1: b"one", 2: b"two"})
    assert [epoch.tokens(n) for n in range(6)] == [0, 2, 9, 12, 19, 26]
    assert [epoch.positions(n) for n in range(6)] == [0, 2, 8, 11, 17, 23]


def test_identity_is_chained_over_the_items() -> None:
    epoch = epoch_of_five()
    epoch.advance({0: b"zero"})
    opened = extend_identity(ROOT, OPEN, None)
    seen = extend_identity(opened, frame(0), b"zero")
    assert epoch.identity(0) == ROOT
    assert epoch.identity(1) == opened
    assert epoch.identity(2) == seen
    assert epoch.identity(3) == extend_identity(seen, turn(50, 51, 52), None)


def test_a_void_frame_keeps_its_number_and_takes_no_part() -> None:
    epoch = epoch_of_five()
    epoch.mark_void(1)
    epoch.advance({0: b"zero", 1: None, 2: b"two"})
    assert epoch.encoded_n == 5
    assert epoch.items[3] == frame(1)
    assert epoch.computed(0, 5) == (OPEN, frame(0), turn(50, 51, 52), frame(2))
    assert epoch.computed(3, 4) == ()
    assert epoch.identity(4) == epoch.identity(3)
    assert [epoch.tokens(n) for n in (3, 4, 5)] == [12, 12, 19]
    assert [epoch.positions(n) for n in (3, 4, 5)] == [11, 11, 17]
    assert epoch.frames(5) == (frame(0), frame(2))


def test_registered_tokens_count_what_is_still_to_be_encoded_without_void_frames() -> None:
    epoch = epoch_of_five()
    epoch.advance({})
    assert epoch.registered_tokens == 2 + 7 + 3 + 7 + 7
    epoch.advance({0: b"zero"})
    assert epoch.registered_tokens == 26
    epoch.mark_void(2)
    assert epoch.registered_tokens == 19


def test_frames_and_turns_of_a_version() -> None:
    epoch = epoch_of_five()
    assert epoch.frames(1) == ()
    assert epoch.frames(4) == (frame(0), frame(1))
    assert epoch.turns(2) == ()
    assert epoch.turns(5) == (turn(50, 51, 52),)


def test_states() -> None:
    epoch = epoch_of_five()
    epoch.advance({0: b"zero"})
    epoch.publish(2)
    assert [epoch.state(n) for n in range(6)] == [
        VersionState.PUBLISHED,
        VersionState.PUBLISHED,
        VersionState.PUBLISHED,
        VersionState.ENCODED,
        VersionState.REGISTERED,
        VersionState.REGISTERED,
    ]


def test_publishing_never_goes_back_or_beyond_what_is_encoded() -> None:
    epoch = epoch_of_five()
    epoch.advance({0: b"zero"})
    epoch.publish(3)
    epoch.publish(1)
    assert epoch.published_n == 3
    with pytest.raises(IndexError, match="version 4 of epoch 4: only 0 to 3 exist"):
        epoch.publish(4)


def test_an_epoch_has_caught_up_when_what_it_started_with_is_published() -> None:
    epoch = Epoch(1, ROOT, [OPEN, frame(0)])
    epoch.append(frame(1))
    epoch.advance({0: b"zero", 1: b"one"})
    epoch.publish(1)
    assert not epoch.caught_up
    epoch.publish(2)
    assert epoch.caught_up


def test_versions_that_do_not_exist_are_named() -> None:
    epoch = epoch_of_five()
    epoch.advance({0: b"zero"})
    for read in (epoch.identity, epoch.tokens, epoch.positions):
        with pytest.raises(IndexError, match="version 4 of epoch 4: only 0 to 3 exist"):
            read(4)
    for read_any in (epoch.state, epoch.frames, epoch.turns):
        with pytest.raises(IndexError, match="version 6 of epoch 4: only 0 to 5 exist"):
            read_any(6)
        with pytest.raises(IndexError, match="version -1 of epoch 4"):
            read_any(-1)


def test_computed_refuses_ranges_outside_the_encoded_versions() -> None:
    epoch = epoch_of_five()
    epoch.advance({0: b"zero"})
    assert epoch.computed(1, 3) == (frame(0), turn(50, 51, 52))
    for start, stop in ((0, 4), (-1, 3), (3, 2)):
        with pytest.raises(IndexError, match="of epoch 4"):
            epoch.computed(start, stop)
