"""A frame and the tokens around it as one run of embeddings, and what happens where that is not
possible."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from helpers import MODEL, Start, clip, engine_of, settle, show
from two_engines import QUESTION, ask

from edge_vlm_ros.engines.native import Chunk
from edge_vlm_ros.engines.protocol import EmbeddingSegment, TokenSegment
from edge_vlm_ros.gguf_file import GgufFile
from edge_vlm_ros.history import FrameItem, FrameShape, Grid
from edge_vlm_ros.history.grid import in_line
from edge_vlm_ros.runtime import Runtime
from edge_vlm_ros.runtime.frame_segments import WrapperRows, frame_segments, wrapper_rows

LANGUAGE = MODEL / "lm.Q8_0.gguf"
SHAPE = FrameShape(prefix=(3,), suffix=(4, 204), n_embeddings=49, n_embedding_positions=49)


def item(grid: Grid | None) -> FrameItem:
    n = 6 if grid is None else grid.n_positions
    return FrameItem(0, 0, SHAPE.prefix, SHAPE.suffix, 6, n, grid)


def test_the_rows_are_those_of_the_tokens() -> None:
    made = wrapper_rows(SHAPE, LANGUAGE, 256)
    assert made is not None
    expected = GgufFile(LANGUAGE).rows("token_embd.weight", (3, 4, 204))
    np.testing.assert_array_equal(made.prefix, expected[:1])
    np.testing.assert_array_equal(made.suffix, expected[1:])


def test_behind_them_are_zeros_where_frames_have_more_values() -> None:
    made = wrapper_rows(SHAPE, LANGUAGE, 1024)
    assert made is not None
    assert made.suffix.shape == (2, 1024) and not made.suffix[:, 256:].any()


@pytest.mark.parametrize("grid", [None, Grid(2, 3), Grid(1, 4, before=1, after=1)])
def test_a_frame_is_one_run_of_embeddings_at_the_same_positions(grid: Grid | None) -> None:
    frame = np.arange(12, dtype=np.float32).reshape(6, 2)
    wrapper = WrapperRows(np.full((1, 2), 90, np.float32), np.full((2, 2), 91, np.float32))
    (segment,) = frame_segments(item(grid), frame, wrapper)
    assert isinstance(segment, EmbeddingSegment)
    assert segment.embeddings.dtype == np.float32
    assert segment.embeddings[:, 0].tolist() == [90, 0, 2, 4, 6, 8, 10, 91, 91]
    if grid is None:
        assert segment.grid is None
        return
    assert segment.grid is not None and segment.grid.n_tokens == len(segment.embeddings)
    apart = (in_line(7, 1), grid.positions(8), in_line(8 + grid.n_positions, 2))
    np.testing.assert_array_equal(segment.grid.positions(7), np.concatenate(apart, axis=1))
    assert segment.grid.n_positions == item(grid).n_positions


def test_without_the_rows_there_are_three_segments() -> None:
    frame = np.zeros((6, 2), np.float32)
    before, middle, after = frame_segments(item(Grid(2, 3)), frame, None)
    assert (before, after) == (TokenSegment(SHAPE.prefix), TokenSegment(SHAPE.suffix))
    assert isinstance(middle, EmbeddingSegment)
    assert (middle.embeddings is frame, middle.grid) == (True, Grid(2, 3))


def test_a_model_that_computes_tokens_otherwise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(GgufFile, "architecture", "gemma3")
    with caplog.at_level(logging.INFO):
        assert wrapper_rows(SHAPE, LANGUAGE, 256) is None
    assert "gemma3 computes tokens otherwise than embeddings" in caplog.text
    bare = FrameShape(prefix=(), suffix=(), n_embeddings=49, n_embedding_positions=49)
    assert wrapper_rows(bare, LANGUAGE, 256) is not None, "there are no tokens around a frame"


def test_a_model_whose_rows_cannot_be_read(tmp_path: Path) -> None:
    part = tmp_path / "part.gguf"
    part.write_bytes(b"GGUF")
    assert wrapper_rows(SHAPE, part, 256) is None


def test_both_ways_give_the_same_answer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(runtime: Runtime) -> list[int]:
        settle(runtime)
        rows, context = [], engine_of(runtime)._context
        extend = context.extend

        def counted(sequence: int, first: int, chunk: Chunk) -> None:
            rows.append(len(chunk))
            extend(sequence, first, chunk)

        monkeypatch.setattr(context, "extend", counted)
        show(runtime, "table", clip(1).frames(2))
        settle(runtime)
        return rows

    together = start()
    assert steps(together) == [52, 52]
    monkeypatch.setattr(GgufFile, "architecture", "gemma3")
    apart = start()
    assert steps(apart) == [1, 49, 2, 1, 49, 2]
    assert ask(together, text=QUESTION).token_ids == ask(apart, text=QUESTION).token_ids
