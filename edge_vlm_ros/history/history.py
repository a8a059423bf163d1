"""The versioned history of one stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .bindings import Binding, BindingError, NewestPublished, NewestRegistered, Stamp
from .epoch import Epoch
from .grid import Grid
from .items import FrameItem, Item, TextItem, TextRole
from .limits import HistoryLimits
from .successor import Successor, kept_items
from .version import Version, VersionState

VOID_FRAMES_PER_FRAME = 4
"""Void frames an epoch may hold for each frame its limits allow."""


class HistoryFull(RuntimeError):
    """An item does not fit into the history and the policy does not make room for it."""


@dataclass(frozen=True)
class FrameShape:
    """What every frame of a model looks like in the token stream; see FrameItem."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    n_embeddings: int
    n_embedding_positions: int
    grid: Grid | None = None


class History:
    """Items of one stream in their order of arrival, and the questions that hold on to them.

    Not thread-safe: one owner calls it. ``root`` is the identity of the empty prefix,
    ``open_tokens`` start every epoch.
    """

    def __init__(
        self,
        stream: str,
        root: bytes,
        open_tokens: tuple[int, ...],
        frame_shape: FrameShape,
        limits: HistoryLimits,
    ) -> None:
        self.stream = stream
        self.limits = limits
        self._root = root
        self._open = TextItem(open_tokens, TextRole.OPEN)
        self._shape = frame_shape
        self._next_frame_id = 0
        self._contents: dict[int, bytes | None] = {}
        self._readers: Counter[Version] = Counter()
        self._wanted: Counter[Version] = Counter()
        self._oldest_bindable = 0
        self._next_epoch = 0
        self._epochs: dict[int, Epoch] = {}
        self._successor = Successor(limits, self._make_epoch)
        self._current = self._start_epoch([])

    # ---------------------------------------------------------------- reading
    @property
    def current(self) -> Epoch:
        return self._current

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs still in use, oldest first; the last is the current one."""
        return tuple(self._epochs.values())

    @property
    def successor(self) -> Epoch | None:
        """What the next epoch will begin with, as far as that is known: engines may compute it
        ahead. Nothing can be bound to it before it is the current one."""
        return self._successor.epoch

    @property
    def frame_tokens(self) -> int:
        """Tokens that every frame takes."""
        shape = self._shape
        return len(shape.prefix) + shape.n_embeddings + len(shape.suffix)

    def epoch(self, number: int) -> Epoch:
        """Raises KeyError when the epoch is gone or never was."""
        return self._epochs[number]

    def newest(self, state: VersionState) -> Version:
        """The newest version of the current epoch that has reached ``state``."""
        epoch = self._current
        n = (len(epoch), epoch.encoded_n, epoch.published_n)[state]
        return Version(self.stream, epoch.number, n)

    def state(self, version: Version) -> VersionState:
        return self.epoch(version.epoch).state(version.n)

    def content(self, frame_id: int) -> bytes:
        """Content digest of an encoded frame."""
        content = self._contents.get(frame_id)
        if content is None:
            raise KeyError(f"frame {frame_id} of stream {self.stream!r} has no content")
        return content

    def needed_n(self, epoch: Epoch) -> int:
        """Newest version number of ``epoch`` that anybody may still need KV for."""
        if epoch is self._current:
            return len(epoch)
        needed = [v.n for v in self._wanted if v.epoch == epoch.number]
        if not needed or epoch is self._fallback_epoch():
            needed.append(epoch.published_n)
        return max(needed)

    def wants_kv(self, epoch: Epoch) -> bool:
        """Whether an engine should hold ``epoch``: the current one, the one that stands in for it,
        and those that a question waits for."""
        return self.has_waiting(epoch) or epoch is self._fallback_epoch()

    def has_waiting(self, epoch: Epoch) -> bool:
        """Whether frames or questions wait for more of ``epoch`` to be computed."""
        wanted = any(version.epoch == epoch.number for version in self._wanted)
        return wanted or epoch is self._current

    def must_wait(self) -> bool:
        """Whether another frame would begin a rebuild before the last one has caught up.

        Rebuilding faster than engines compute would publish nothing ever again.
        """
        dropping = self.limits.policy == "drop_oldest"
        return dropping and not self._current.caught_up and not self._fits_frame()

    # ---------------------------------------------------------------- appending
    def register_frame(self, stamp_ns: int) -> tuple[FrameItem, Version]:
        """Append a frame whose content is still to come. Raises HistoryFull."""
        shape = self._shape
        frame = FrameItem(
            self._next_frame_id,
            stamp_ns,
            shape.prefix,
            shape.suffix,
            shape.n_embeddings,
            shape.n_embedding_positions,
            shape.grid,
        )
        version = self._append(frame)
        self._next_frame_id += 1
        return frame, version

    def append_turn(self, tokens: tuple[int, ...], text: str) -> Version:
        """Append a committed question and answer. Raises HistoryFull."""
        return self._append(TextItem(tokens, TextRole.TURN, text))

    def complete_frame(self, frame_id: int, content: bytes) -> None:
        """The frame is encoded; ``content`` is its digest. Any order of completion is fine."""
        self._settle(frame_id, content)

    def void_frame(self, frame_id: int) -> None:
        """The frame's content will never come: it takes no part in any version."""
        self._settle(frame_id, None)

    def publish(self, version: Version) -> None:
        """An engine holds finished KV for ``version``. Unknown epochs are ignored: the history
        may have let go of one while an engine was still computing. So is the successor: what is
        computed ahead may be lost again before it is in use."""
        epoch = self._epochs.get(version.epoch)
        if epoch is not None:
            epoch.publish(version.n)

    def reset(self) -> Version:
        """Forget everything in a new epoch. Only questions bound before keep what they see."""
        self._current = self._start_epoch([])
        self._oldest_bindable = self._current.number
        return self.newest(VersionState.REGISTERED)

    # ---------------------------------------------------------------- questions
    def bind(self, binding: Binding) -> Version:
        """Resolve ``binding``, hold the version until ``release`` and want its KV until
        ``unwant``. Raises BindingError."""
        version = self._resolve(binding)
        self._readers[version] += 1
        self._wanted[version] += 1
        return version

    def unwant(self, version: Version) -> None:
        """A question that holds the version has its KV: only the items must stay, so that another
        engine can take over."""
        self._wanted[version] -= 1
        self._settle_wants(version)

    def want(self, version: Version) -> None:
        """A question that holds the version needs its KV again: its engine was lost."""
        self._wanted[version] += 1
        self._settle_wants(version)

    def release(self, version: Version) -> None:
        """End one hold; its want ends with it."""
        if self._readers[version] < 1:
            raise ValueError(f"{version} is not held")
        self._readers[version] -= 1
        if not self._readers[version]:
            del self._readers[version]
        self._settle_wants(version)

    def pop_retired(self) -> list[Epoch]:
        """Remove and return the epochs that nobody needs any more.

        After a rebuild the newest epoch that was published stays until the new one has caught up,
        so that a question for the newest published version always finds one.
        """
        needed = {version.epoch for version in self._readers} | {self._current.number}
        fallback = self._fallback_epoch()
        if fallback is not None:
            needed.add(fallback.number)
        retired = [epoch for epoch in self._epochs.values() if epoch.number not in needed]
        for epoch in retired:
            del self._epochs[epoch.number]
        live = self.live_frames()
        self._contents = {k: v for k, v in self._contents.items() if k in live}
        return retired

    def pop_given_up(self) -> list[Epoch]:
        """Remove and return the successors that will not be in use."""
        return self._successor.pop_given_up()

    def live_frames(self) -> set[int]:
        """Ids of all frames in epochs that are still in use."""
        return {
            item.frame_id
            for epoch in self._epochs.values()
            for item in epoch.items
            if isinstance(item, FrameItem)
        }

    # ---------------------------------------------------------------- internals
    def _settle_wants(self, version: Version) -> None:
        """Nobody wants what nobody holds."""
        wanted = min(max(self._wanted[version], 0), self._readers.get(version, 0))
        self._wanted[version] = wanted
        if not wanted:
            del self._wanted[version]

    def _resolve(self, binding: Binding) -> Version:
        if isinstance(binding, NewestRegistered):
            return self.newest(VersionState.REGISTERED)
        if isinstance(binding, NewestPublished):
            return self._newest_published()
        if isinstance(binding, Stamp):
            return self._at_stamp(binding.stamp_ns)
        epoch = self._epochs.get(binding.epoch)
        if epoch is None or epoch.number < self._oldest_bindable:
            raise BindingError(
                f"epoch {binding.epoch} of stream {self.stream!r} is not available: the current "
                f"one is {self._current.number}, others end when the history is rebuilt or reset"
            )
        if not 0 <= binding.n <= len(epoch):
            raise BindingError(
                f"version {binding.n} of stream {self.stream!r} does not exist: epoch "
                f"{epoch.number} has versions 0 to {len(epoch)}"
            )
        return Version(self.stream, epoch.number, binding.n)

    def _newest_published(self) -> Version:
        fallback = self._fallback_epoch()
        epoch = self._current if fallback is None else fallback
        if not epoch.published_n:
            raise BindingError(f"no version of stream {self.stream!r} is published yet")
        return Version(self.stream, epoch.number, epoch.published_n)

    def _fallback_epoch(self) -> Epoch | None:
        """What stands in for the current epoch until that has been computed again.

        An epoch that was itself replaced before it had caught up holds less than the one before
        it: it stands in only where nothing better is left.
        """
        if self._current.caught_up:
            return None
        older = (e for e in reversed(self._epochs.values()) if e is not self._current)
        published = [e for e in older if e.published_n and e.number >= self._oldest_bindable]
        complete = (e for e in published if e.caught_up)
        return next(complete, published[0] if published else None)

    def _at_stamp(self, stamp_ns: int) -> Version:
        epoch = self._current
        computed = set(epoch.frames(len(epoch)))
        frames = [
            (i, item)
            for i, item in enumerate(epoch.items, 1)
            if isinstance(item, FrameItem) and item in computed
        ]
        fitting = [i for i, frame in frames if frame.stamp_ns <= stamp_ns]
        if not fitting:
            oldest = f"the oldest has {frames[0][1].stamp_ns} ns" if frames else "it has no frames"
            raise BindingError(
                f"stream {self.stream!r} holds no frame with a stamp up to {stamp_ns} ns: {oldest}"
            )
        return Version(self.stream, epoch.number, fitting[-1])

    def _append(self, item: Item) -> Version:
        if self._current.n_void >= VOID_FRAMES_PER_FRAME * self.limits.max_frames:
            self._leave_void_frames_behind()
        if not self._fits(self._current, item):
            self._make_room(item)
        self._current.append(item)
        self._successor.follow(self._current)
        self._advance()
        return self.newest(VersionState.REGISTERED)

    def _settle(self, frame_id: int, content: bytes | None) -> None:
        if frame_id not in self.live_frames():
            return  # its last epoch was let go of while it was being encoded
        if frame_id in self._contents:
            raise ValueError(f"frame {frame_id} of stream {self.stream!r} is settled already")
        self._contents[frame_id] = content
        if content is None:
            for epoch in self._epochs.values():
                epoch.mark_void(frame_id)
            self._successor.follow(self._current)
        self._advance()

    def _advance(self) -> None:
        for epoch in self._epochs.values():
            epoch.advance(self._contents)
        if self._successor.epoch is not None:
            self._successor.epoch.advance(self._contents)

    def _fits(self, epoch: Epoch, item: Item) -> bool:
        extra_frame = isinstance(item, FrameItem)
        return (
            epoch.registered_tokens + item.n_tokens <= self.limits.max_tokens
            and len(epoch.frames(len(epoch))) + extra_frame <= self.limits.max_frames
        )

    def _fits_frame(self) -> bool:
        shape = self._shape
        return self._fits(
            self._current,
            FrameItem(0, 0, shape.prefix, shape.suffix, shape.n_embeddings, 0),
        )

    def _make_room(self, item: Item) -> None:
        limits = self.limits
        if limits.policy == "reject":
            raise HistoryFull(
                f"the history of stream {self.stream!r} is full ({limits.max_frames} frames or "
                f"{limits.max_tokens} tokens) and its policy is reject: reset the stream, or use "
                "the policy drop_oldest"
            )
        if self._open.n_tokens + item.n_tokens > limits.max_tokens:
            raise HistoryFull(
                f"an item of {item.n_tokens} tokens never fits into a history of "
                f"{limits.max_tokens} tokens (stream {self.stream!r}): raise max_tokens"
            )
        frames = self._current.frames(len(self._current))
        newest = frames[max(0, len(frames) - limits.keep_frames) :]
        kept = kept_items(self._current, newest, limits.max_turns)
        budget = limits.max_tokens - self._open.n_tokens - item.n_tokens
        while sum(i.n_tokens for i in kept) > budget:
            # Old turns go before frames: what is asked about is what was seen.
            turns = [i for i in kept if isinstance(i, TextItem)]
            kept.remove(turns[0] if turns else kept[0])
        self._current = self._successor.take(kept) or self._make_epoch(kept)
        self._epochs[self._current.number] = self._current

    def _leave_void_frames_behind(self) -> None:
        """Void frames cost no tokens; only a new epoch bounds their number."""
        epoch = self._current
        frames = set(epoch.frames(len(epoch)))
        kept = [i for i in epoch.items[1:] if isinstance(i, TextItem) or i in frames]
        self._current = self._start_epoch(kept)

    def _start_epoch(self, kept: Iterable[Item]) -> Epoch:
        self._successor.give_up()
        epoch = self._make_epoch(kept)
        self._epochs[epoch.number] = epoch
        return epoch

    def _make_epoch(self, kept: Iterable[Item]) -> Epoch:
        epoch = Epoch(self._next_epoch, self._root, (self._open, *kept))
        self._next_epoch += 1
        epoch.advance(self._contents)
        return epoch
