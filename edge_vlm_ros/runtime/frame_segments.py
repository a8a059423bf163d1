"""What an engine computes a frame from: its embeddings and the tokens around them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_vlm_ros.engines.protocol import EmbeddingSegment, Segment, TokenSegment
from edge_vlm_ros.gguf_file import GgufError, GgufFile
from edge_vlm_ros.history import FrameItem, FrameShape
from edge_vlm_ros.token_rows import token_rows

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class WrapperRows:
    """The tokens around a frame as embeddings, float32 [n, n_embd], those before and those after.

    A batch of llama.cpp holds either tokens or embeddings. With these a frame is one run of
    embeddings; else the tokens before and after it are steps of their own, each of which reads all
    weights for a token or two.
    """

    prefix: NDArray[np.float32]
    suffix: NDArray[np.float32]


def wrapper_rows(shape: FrameShape, model_file: Path, n_embd: int) -> WrapperRows | None:
    """The rows for frames of ``shape``, whose embeddings have ``n_embd`` values; None (and a line
    in the log) when the model's tokens cannot be computed as embeddings."""
    tokens = (*shape.prefix, *shape.suffix)
    try:
        rows = token_rows(GgufFile(model_file), tokens, n_embd)
    except GgufError as error:
        _logger.info("the tokens around a frame are computed in steps of their own: %s", error)
        return None
    return WrapperRows(*np.split(rows, [len(shape.prefix)]))


def frame_segments(
    item: FrameItem, embeddings: NDArray[np.float32], wrapper: WrapperRows | None
) -> tuple[Segment, ...]:
    """A frame with its ``embeddings``, float32 [n_embeddings, n_embd], and what is around it."""
    if wrapper is None:
        frame = EmbeddingSegment(embeddings, item.grid)
        return TokenSegment(item.prefix), frame, TokenSegment(item.suffix)
    grid = item.grid
    if grid is not None:
        before, after = grid.before + len(wrapper.prefix), grid.after + len(wrapper.suffix)
        grid = grid._replace(before=before, after=after)
    rows = np.concatenate((wrapper.prefix, embeddings, wrapper.suffix))
    return (EmbeddingSegment(rows, grid),)
