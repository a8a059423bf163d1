"""Prefix identity: a digest chained over items. Equal digests mean the same computation."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from .items import FrameItem, Item

IDENTITY_BYTES = 32


def root_identity(*parts: bytes) -> bytes:
    """Identity of the empty prefix of a model.

    ``parts`` are the digests of everything the computation depends on besides the items: model
    file, adapters, template. Returns 32 bytes.
    """
    return _digest(b"edge_vlm_ros/root", parts)


def extend_identity(parent: bytes, item: Item, content: bytes | None) -> bytes:
    """Identity of a prefix of identity ``parent`` followed by ``item``. Returns 32 bytes.

    ``content`` is the digest of a frame's preprocessed pixels together with its encoder's
    identity; None for text. Raises ValueError when it is missing for a frame or given for text:
    placeholder ids alone never identify a frame.
    """
    if isinstance(item, FrameItem):
        if content is None:
            raise ValueError(f"frame {item.frame_id} has no content digest yet")
        parts = (parent, _ids(item.prefix), content, _ids(item.suffix), _sizes(item))
        return _digest(b"frame", parts)
    if content is not None:
        raise ValueError("a text item's content is its token ids; no digest belongs to it")
    return _digest(b"text", (parent, _ids(item.tokens), _sizes(item)))


def _sizes(item: Item) -> bytes:
    sizes = struct.pack("<II", item.n_tokens, item.n_positions)
    grid = item.grid if isinstance(item, FrameItem) else None
    return sizes if grid is None else sizes + struct.pack("<IIII", *grid)


def _ids(tokens: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<i", token) for token in tokens)


def _digest(kind: bytes, parts: Iterable[bytes]) -> bytes:
    # Every part is preceded by its length, so that no two lists of parts give the same bytes.
    digest = hashlib.blake2b(digest_size=IDENTITY_BYTES)
    for part in (kind, *parts):
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.digest()
