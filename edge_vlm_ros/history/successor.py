"""What the next epoch of a history begins with, as far as that is known before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .epoch import Epoch
from .items import FrameItem, Item, TextRole
from .limits import HistoryLimits


def kept_items(epoch: Epoch, frames: Sequence[FrameItem], max_turns: int) -> list[Item]:
    """``frames`` of ``epoch`` and its newest turns, in their order."""
    kept_frames = set(frames)
    kept: list[Item] = []
    turns = 0
    for item in reversed(epoch.items):
        if isinstance(item, FrameItem):
            if item in kept_frames:
                kept.append(item)
        elif item.role is TextRole.TURN and turns < max_turns:
            turns += 1
            kept.append(item)
    return kept[::-1]


class Successor:
    """The epoch that follows the current one, begun before that is full.

    Once an epoch has as many frames as will be dropped, all later ones will be kept, so engines can
    compute the next epoch while this one is still in use. If it comes otherwise (turns push out
    older ones or take the room of a frame, a frame cannot be encoded) it is given up, and the next
    epoch begins with nothing computed. ``start`` makes an epoch that begins with some items.
    """

    def __init__(self, limits: HistoryLimits, start: Callable[[Iterable[Item]], Epoch]) -> None:
        self.epoch: Epoch | None = None
        self._limits = limits
        self._start = start
        self._given_up: list[Epoch] = []
        self._followed: Epoch | None = None
        """The epoch that no other successor is begun for."""

    def follow(self, current: Epoch) -> None:
        """Take over what has become of the current epoch."""
        kept = self._kept(current)
        if self.epoch is None:
            if kept and self._followed is not current:
                self._followed, self.epoch = current, self._start(kept)
            return
        known = self.epoch.items[1:]
        if tuple(kept[: len(known)]) != known:
            self.give_up()
            return
        for item in kept[len(known) :]:
            self.epoch.append(item)

    def _kept(self, current: Epoch) -> list[Item]:
        """What will be kept of it; nothing as long as no frame is among that."""
        limits = self._limits
        frames = current.frames(len(current))
        if limits.policy != "drop_oldest" or not limits.keep_frames or not frames:
            return []
        around = current.registered_tokens - sum(frame.n_tokens for frame in frames)
        room = (limits.max_tokens - around) // frames[0].n_tokens  # if no turn is committed
        n_dropped = max(0, min(limits.max_frames, room) - limits.keep_frames)
        kept = frames[n_dropped:]
        return kept_items(current, kept, limits.max_turns) if kept else []

    def take(self, kept: Sequence[Item]) -> Epoch | None:
        """The successor, if it has begun with ``kept``: it is the current epoch from now on. None:
        it has not, and is given up."""
        epoch = self.epoch
        if epoch is None or epoch.items[1:] != tuple(kept):
            self.give_up()
            return None
        self.epoch = None
        epoch.begin()
        return epoch

    def give_up(self) -> None:
        if self.epoch is not None:
            self._given_up.append(self.epoch)
            self.epoch = None

    def pop_given_up(self) -> list[Epoch]:
        given_up, self._given_up = self._given_up, []
        return given_up
