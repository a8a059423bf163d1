"""What goes into a vision worker and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

from .embedding_cache import EmbeddingKey
from .encoder import Embeddings, RgbImage


@dataclass(frozen=True, eq=False)
class EncodeRequest:
    """One registered frame of a stream.

    Attributes:
        stream: the stream's name.
        frame_id: the frame's number, unique within its stream.
        rgb: uint8 [H, W, 3] of any size; must not be written to afterwards.
    """

    stream: str
    frame_id: int
    rgb: RgbImage


@dataclass(frozen=True, eq=False)
class FrameEncoded:
    """A frame's embeddings are there.

    They lie in the embedding cache under ``key``, pinned once on behalf of the receiver, who
    unpins them when no question needs them any more.

    Attributes:
        stream: the request's stream.
        frame_id: the request's frame.
        key: where the embeddings lie in the cache.
        embeddings: float32 [n_tokens, n_embd], read-only.
        encode_s: seconds spent in the encoder; 0.0 on a cache hit.
        cache_hit: True when the same pixels had been encoded before.
        started: reading of the monotonic clock when encoding began, in seconds; 0.0 on a cache hit.
    """

    stream: str
    frame_id: int
    key: EmbeddingKey
    embeddings: Embeddings
    encode_s: float
    cache_hit: bool
    started: float = 0.0


@dataclass(frozen=True)
class FrameFailed:
    """A frame could not be encoded, or was still waiting when the worker was closed."""

    stream: str
    frame_id: int
    error: str


VisionEvent = FrameEncoded | FrameFailed
