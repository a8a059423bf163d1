"""One append-only list of items and how far each of its versions has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .identity import extend_identity
from .items import FrameItem, Item, TextItem, TextRole
from .version import VersionState


class Epoch:
    """The items of one stream between two rebuilds of its history.

    Frames may finish encoding in any order; versions become encoded in order only.
    A frame whose content will never come (the encoder failed) is void: it keeps its place in the
    numbering and takes no part in the computation.
    ``items`` are what a rebuild kept of the epoch before.
    """

    def __init__(self, number: int, root: bytes, items: Iterable[Item] = ()) -> None:
        self.number = number
        self.published_n = 0
        self._items = list(items)
        self._base_n = len(self._items)
        self._void: set[int] = set()
        self._identities = [root]
        self._tokens = [0]
        self._positions = [0]

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(self._items)

    @property
    def encoded_n(self) -> int:
        """Number of items of the newest version whose items are all encoded."""
        return len(self._identities) - 1

    @property
    def caught_up(self) -> bool:
        """Whether everything the epoch started with is published."""
        return self.published_n >= self._base_n

    @property
    def n_void(self) -> int:
        return len(self._void)

    def state(self, n: int) -> VersionState:
        self._check(n, len(self))
        if n <= self.published_n:
            return VersionState.PUBLISHED
        return VersionState.ENCODED if n <= self.encoded_n else VersionState.REGISTERED

    def begin(self) -> None:
        """It is the current one from now on, and what it has is what it began with."""
        self._base_n = len(self._items)

    def append(self, item: Item) -> int:
        """Append ``item`` and return the number of the version it completes."""
        self._items.append(item)
        return len(self._items)

    def advance(self, contents: Mapping[int, bytes | None]) -> None:
        """Move the encoded frontier over all items whose content is known.

        ``contents`` maps frame ids to content digests; None marks a void frame.
        """
        while self.encoded_n < len(self._items):
            item = self._items[self.encoded_n]
            if isinstance(item, FrameItem):
                if item.frame_id not in contents:
                    return
                self._admit(item, contents[item.frame_id])
            else:
                self._admit(item, None)

    def publish(self, n: int) -> None:
        """An engine holds finished KV for version ``n``; older versions are prefixes of it."""
        self._check(n, self.encoded_n)
        self.published_n = max(self.published_n, n)

    def computed(self, start: int, stop: int) -> tuple[Item, ...]:
        """The items ``start`` .. ``stop`` - 1 that take part in the computation."""
        self._check(stop, self.encoded_n)
        self._check(start, stop)
        return tuple(item for item in self._items[start:stop] if not self._is_void(item))

    def frames(self, n: int) -> tuple[FrameItem, ...]:
        """The frames of version ``n`` that are not (known to be) void, oldest first."""
        self._check(n, len(self))
        return tuple(
            item
            for item in self._items[:n]
            if isinstance(item, FrameItem) and item.frame_id not in self._void
        )

    def turns(self, n: int) -> tuple[TextItem, ...]:
        """The committed turns of version ``n``, oldest first."""
        self._check(n, len(self))
        return tuple(
            item
            for item in self._items[:n]
            if isinstance(item, TextItem) and item.role is TextRole.TURN
        )

    def identity(self, n: int) -> bytes:
        """Prefix identity of an encoded version (32 bytes)."""
        self._check(n, self.encoded_n)
        return self._identities[n]

    def tokens(self, n: int) -> int:
        """Tokens (KV cells) of an encoded version."""
        self._check(n, self.encoded_n)
        return self._tokens[n]

    def positions(self, n: int) -> int:
        """Positions of an encoded version: where its next token goes."""
        self._check(n, self.encoded_n)
        return self._positions[n]

    @property
    def registered_tokens(self) -> int:
        """Tokens of the newest registered version, frames still to be encoded included."""
        pending = self._items[self.encoded_n :]
        return self._tokens[-1] + sum(item.n_tokens for item in pending if not self._is_void(item))

    def mark_void(self, frame_id: int) -> None:
        self._void.add(frame_id)

    def _is_void(self, item: Item) -> bool:
        return isinstance(item, FrameItem) and item.frame_id in self._void

    def _admit(self, item: Item, content: bytes | None) -> None:
        void = isinstance(item, FrameItem) and content is None
        parent = self._identities[-1]
        self._identities.append(parent if void else extend_identity(parent, item, content))
        self._tokens.append(self._tokens[-1] + (0 if void else item.n_tokens))
        self._positions.append(self._positions[-1] + (0 if void else item.n_positions))

    def _check(self, n: int, limit: int) -> None:
        if not 0 <= n <= limit:
            raise IndexError(f"version {n} of epoch {self.number}: only 0 to {limit} exist")
