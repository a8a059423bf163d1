"""Models whose frames lie in a grid (M-RoPE) compute what llama.cpp computes from positions that
were written down by hand, and do all that other models do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
from engine_helpers import Driver, Items, MakeDriver, n_positions
from grid_models import grid_model
from numpy.typing import NDArray

from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.errors import ComputeError, ExportError, InvalidBatchError
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.native import FramePart
from edge_vlm_ros.engines.protocol import EmbeddingSegment, TokenSegment, TrunkId
from edge_vlm_ros.engines.state_blob import parse_state_blob
from edge_vlm_ros.history import Grid
from edge_vlm_ros.model_profile import ModelProfile
from edge_vlm_ros.runtime.prompt import PromptTemplate, prompt_template

TABLE = TrunkId("table", 0)
KINDS = [("qwen2vl", 0), ("qwen3vl", 0), ("qwen3vl", 2)]
GRIDS = (Grid(7, 7), Grid(3, 5), Grid(5, 3, 1, 2), Grid(1, 4), Grid(4, 1, 2), Grid(1, 1))


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}-deepstack{kind[1]}")
def model(
    request: pytest.FixtureRequest, profile: ModelProfile, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaModel]:
    arch, n_deepstack = request.param
    path = tmp_path_factory.mktemp("models") / f"{arch}.gguf"
    model = LlamaModel(grid_model(profile.language.file, path, arch, n_deepstack=n_deepstack))
    yield model
    model.close()


@pytest.fixture(scope="module")
def prompt(grid_profile: ModelProfile, model: LlamaModel) -> PromptTemplate:
    return prompt_template(grid_profile, model)


def frame(model: LlamaModel, grid: Grid, seed: int = 0) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((grid.n_tokens, model.n_embd_frame))
    return rows.astype(np.float32)


def story_of(model: LlamaModel) -> Items:
    """Text, and frames of every shape, with and without text around them."""
    items: list[Any] = [(TokenSegment((5, 6, 7)),)]
    for seed, grid in enumerate(GRIDS):
        rows = EmbeddingSegment(frame(model, grid, seed), grid)
        items.append((TokenSegment((3,)), rows, TokenSegment((4, 9)[: seed % 3])))
    return tuple(items)


# -------------------------------------------------------------------------------- by hand
class ByHand:
    """llama.cpp's own calls, one sequence in a cache of its own, positions spelled out."""

    def __init__(self, model: LlamaModel) -> None:
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 512
        params.type_k = params.type_v = 8
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.n_threads = params.n_threads_batch = 1
        self.model, self.handle = model, llama.llama_init_from_model(model.handle, params)
        self.next = 0

    def tokens(self, *ids: int) -> None:
        batch = llama.llama_batch_init(len(ids), 0, 1)
        for row, token in enumerate(ids):
            batch.token[row] = token
        self._decode(batch, [[self.next + row for row in range(len(ids))]])
        self.next += len(ids)

    def frame(self, rows: NDArray[np.float32], grid: Grid) -> None:
        batch = llama.llama_batch_init(len(rows), rows.shape[1], 1)
        for index, value in enumerate(rows.ravel()):
            batch.embd[index] = value
        before = [self.next + k for k in range(grid.before)]
        image = self.next + grid.before
        t = [image] * (grid.rows * grid.columns)
        y = [image + row for row in range(grid.rows) for _ in range(grid.columns)]
        x = [image + column for _ in range(grid.rows) for column in range(grid.columns)]
        end = image + max(grid.rows, grid.columns)
        after = [end + k for k in range(grid.after)]
        sections = [[*before, *section, *after] for section in (t, y, x)]
        self._decode(batch, [*sections, [0] * len(rows)])
        self.next = end + grid.after

    def _decode(self, batch: llama.llama_batch, sections: list[list[int]]) -> None:
        positions = [position for section in sections for position in section]
        own, batch.pos = batch.pos, (llama.llama_pos * len(positions))(*positions)
        batch.n_tokens = n = len(sections[0])
        for row in range(n):
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = row == n - 1
        assert llama.llama_decode(self.handle, batch) == 0
        del own  # llama_batch_free would free what Python owns: the few bytes are left

    def logits(self) -> NDArray[np.float32]:
        values = llama.llama_get_logits_ith(self.handle, -1)
        return np.ctypeslib.as_array(values, (self.model.n_vocab,)).copy()

    def items(self, items: Items) -> None:
        for segment in (s for item in items for s in item):
            if isinstance(segment, EmbeddingSegment):
                assert segment.grid is not None
                self.frame(segment.embeddings, segment.grid)
            elif segment.tokens:
                self.tokens(*segment.tokens)

    def close(self) -> None:
        llama.llama_free(self.handle)


@pytest.fixture
def by_hand(model: LlamaModel) -> Iterator[ByHand]:
    hand = ByHand(model)
    yield hand
    hand.close()


def record_logits(driver: Driver) -> list[NDArray[np.float32]]:
    """Logits of the last row of every batch from now on that has any."""
    found: list[NDArray[np.float32]] = []
    context = driver.engine._context
    decode = context.decode_tokens

    def recording(tokens, places, sequences, wants):  # type: ignore[no-untyped-def]
        decode(tokens, places, sequences, wants)
        if wants[-1]:
            values = llama.llama_get_logits_ith(context.handle, len(tokens) - 1)
            found.append(np.ctypeslib.as_array(values, (driver.model.n_vocab,)).copy())

    context.decode_tokens = recording  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("chunk_tokens", [512, 16, 7, 1])
def test_logits_are_those_of_positions_written_by_hand(
    make_driver: MakeDriver, model: LlamaModel, by_hand: ByHand, chunk_tokens: int
) -> None:
    """Also of frames that are computed in several parts, at every step of an answer."""
    story = story_of(model)
    driver = make_driver(chunk_tokens=chunk_tokens)
    driver.ingest(TABLE, story)
    logits = record_logits(driver)
    command = driver.question(1, TABLE, n_tokens_of(story), "What changed?", max_tokens=6)
    driver.submit(command)
    ids = driver.finished(1).ids
    by_hand.items(story)
    assert by_hand.next == n_positions(story, len(story))
    by_hand.tokens(*command.prompt)
    assert len(logits) >= 2
    for step, found in enumerate(logits):
        np.testing.assert_array_equal(found, by_hand.logits())
        if step < len(logits) - 1:
            by_hand.tokens(ids[step])


def test_the_grid_matters(make_driver: MakeDriver, model: LlamaModel) -> None:
    """Else the test above would prove nothing."""
    rows, logits = frame(model, Grid(3, 5)), []
    for index, grid in enumerate([Grid(3, 5), Grid(5, 3), Grid(1, 15)]):
        driver = make_driver()
        driver.ingest(TABLE, ((TokenSegment((5, 6)), EmbeddingSegment(rows, grid)),))
        found = record_logits(driver)
        driver.ask(index, TABLE, 17, "What changed?", max_tokens=1)
        logits.append(found[0])
    assert not np.array_equal(logits[0], logits[1])
    assert not np.array_equal(logits[0], logits[2])


def n_tokens_of(items: Items) -> int:
    return sum(
        len(s.tokens if isinstance(s, TokenSegment) else s.embeddings) for i in items for s in i
    )


# -------------------------------------------------------------------------------- one context
@pytest.fixture
def context(model: LlamaModel) -> Iterator[LlamaContext]:
    context = LlamaContext(model, n_ctx=512, n_seq_max=6, n_batch=64, kv_type="q8_0", n_threads=1)
    yield context
    context.close()


def test_the_next_position(context: LlamaContext, model: LlamaModel) -> None:
    rows = frame(model, Grid(3, 5))
    context.extend(0, 0, (5, 6, 7))
    context.extend(0, 3, FramePart(rows[:4], 0, Grid(3, 5)))
    context.extend(0, 7, FramePart(rows[4:], 4, Grid(3, 5)))
    assert context.next_position(0) == 8
    assert llama.llama_memory_seq_pos_max(context._memory, 0) == 3
    context.extend(0, 18, (8,))
    assert context.next_position(0) == 9
    context.fork(0, 1, 18)
    context.fork(0, 2, 3)
    assert (context.next_position(1), context.next_position(2)) == (8, 3)
    context.trim(0, 18)
    assert context.next_position(0) == 8
    context.trim(0, 3)
    assert context.next_position(0) == 3


def test_a_frame_is_not_cut(context: LlamaContext, model: LlamaModel) -> None:
    rows = frame(model, Grid(3, 5))
    context.extend(0, 0, (5, 6, 7))
    context.extend(0, 3, FramePart(rows, 0, Grid(3, 5)))
    with pytest.raises(ExportError, match="would cut a frame"):
        context.export_range(0, 0, 10)
    with pytest.raises(ExportError, match="would cut a frame"):
        context.export_range(0, 4, 18)
    for cut in (lambda: context.fork(0, 1, 10), lambda: context.trim(0, 4)):
        with pytest.raises(ValueError, match="within a frame"):
            cut()
    assert context.next_position(0) == 8
    with pytest.raises(InvalidBatchError, match="not in its grid"):
        context.extend(0, 18, FramePart(rows, 0, Grid(2, 5)))


def test_a_part_that_fails_takes_its_frame_along(
    context: LlamaContext, model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp removes by position, which all parts have in common."""
    rows = frame(model, Grid(3, 5))
    context.extend(0, 0, (5, 6, 7))
    context.extend(1, 0, (5, 6))
    context.extend(0, 3, FramePart(rows[:4], 0, Grid(3, 5)))
    context.extend(1, 2, (5, 6))
    with monkeypatch.context() as patch:
        patch.setattr(llama, "llama_decode", lambda handle, batch: -3)
        with pytest.raises(ComputeError):
            context.extend(0, 7, FramePart(rows[4:], 4, Grid(3, 5)))
    assert context.next_position(0) == 3
    assert llama.llama_memory_seq_pos_max(context._memory, 0) == 2
    with pytest.raises(InvalidBatchError, match="does not follow the 3 tokens"):
        context.extend(0, 7, FramePart(rows[4:], 4, Grid(3, 5)))
    context.extend(0, 3, FramePart(rows, 0, Grid(3, 5)))
    whole = context.export_range(0, 0, 18)
    context.trim(0)
    context.trim(1)
    context.extend(0, 0, (5, 6, 7))
    context.extend(0, 3, FramePart(rows, 0, Grid(3, 5)))
    again = context.export_range(0, 0, 18)
    np.testing.assert_array_equal(whole, again)


# -------------------------------------------------------------------------------- cells
def rows_of(context: LlamaContext, sequence: int, n: int) -> list[NDArray[Any]]:
    """Positions, K rows and V rows of a sequence, in the order of its cells."""
    blob = parse_state_blob(context.export_range(sequence, 0, n), has_grids=True)
    assert blob.grid_positions is not None
    order = np.lexsort((*blob.grid_positions.T[::-1], blob.positions))
    assert list(order) == list(range(n)) or context.unordered
    return [blob.positions, blob.grid_positions, *blob.keys, *blob.values]


class Stream:
    """A sequence that frames are added to, in parts, and how to do the same again."""

    def __init__(self, model: LlamaModel, sequence: int) -> None:
        self.model, self.sequence = model, sequence
        self.parts: list[Any] = []
        self.n_tokens = 0

    def plan(self, rng: random.Random) -> list[Any]:
        """Text, and a frame in parts of some size."""
        grid, size, seed = rng.choice(GRIDS), rng.randint(1, 20), rng.randrange(100)
        rows = frame(self.model, grid, seed)
        parts: list[Any] = [tuple(rng.randrange(20, 60) for _ in range(rng.randint(1, 3)))]
        return parts + [
            FramePart(rows[first : first + size], first, grid)
            for first in range(0, len(rows), size)
        ]

    def extend(self, context: LlamaContext, part: Any) -> None:
        context.extend(self.sequence, self.n_tokens, part)
        self.parts.append(part)
        self.n_tokens += len(part)

    def again(self, context: LlamaContext) -> None:
        n = 0
        for part in self.parts:
            context.extend(self.sequence, n, part)
            n += len(part)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_around_it_a_sequence_is_the_same(model: LlamaModel, seed: int) -> None:
    """Streams grow and end, an answer grows beside them between the parts of a frame: cells of
    dead frames are used again, and everything stays in order."""
    rng = random.Random(seed)
    alone, context = (
        LlamaContext(model, n_ctx=1024, n_seq_max=6, n_batch=64, kv_type="q8_0", n_threads=1)
        for _ in "ab"
    )
    streams = [Stream(model, sequence) for sequence in range(3)]
    answers = 0
    for _ in range(40):
        index = rng.randrange(3)
        stream = streams[index]
        if stream.n_tokens > 150 or rng.random() < 0.2:
            context.trim(stream.sequence)
            streams[index] = Stream(model, stream.sequence)
            continue
        beside = streams[(index + 1) % 3]
        context.fork(beside.sequence, 4, beside.n_tokens)
        n = beside.n_tokens
        for part in stream.plan(rng):
            stream.extend(context, part)
            context.extend(4, n, (rng.randrange(20, 60),))
            n, answers = n + 1, answers + 1
        context.trim(4)
    assert not context.unordered and answers
    for stream in streams:
        stream.again(alone)
        if stream.n_tokens:
            for found, expected in zip(
                rows_of(context, stream.sequence, stream.n_tokens),
                rows_of(alone, stream.sequence, stream.n_tokens),
                strict=True,
            ):
                np.testing.assert_array_equal(found, expected)
        alone.trim(stream.sequence)
    context.close()
    alone.close()


def test_the_rest_of_a_dead_frame_is_buried_again(context: LlamaContext, model: LlamaModel) -> None:
    """Else an older sequence above would get its cells."""
    rows = frame(model, Grid(7, 7))
    context.extend(0, 0, FramePart(rows, 0, Grid(7, 7)))
    context.extend(1, 0, (5, 6, 7))
    context.trim(0)
    context.extend(2, 0, FramePart(rows[:20], 0, Grid(7, 7)))
    context.extend(1, 3, (8, 9))
    context.extend(2, 20, FramePart(rows[20:], 20, Grid(7, 7)))
    assert list(context._map.cells(1)) == [49, 50, 51, 52, 53]
    assert list(context._map.cells(2)) == list(range(49))
    assert not context.unordered
    for sequence, n in ((1, 5), (2, 49)):
        rows_of(context, sequence, n)
