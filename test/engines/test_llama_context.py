"""Batches, forks and trims of one native context, and every way in which it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import tiny_llama

from edge_vlm_ros.engines import native_log
from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.errors import (
    ComputeError,
    ContextError,
    DecodeAbortedError,
    ExportError,
    ImportRefusedError,
    InvalidBatchError,
    NoCellsError,
    WrongRangeError,
)
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.state_blob import parse_state_blob

Make = Callable[..., LlamaContext]


@pytest.fixture
def make(model: LlamaModel) -> Iterator[Make]:
    contexts: list[LlamaContext] = []

    def make(model: LlamaModel = model, **settings: Any) -> LlamaContext:
        defaults: dict[str, Any] = {
            "n_ctx": 256, "n_seq_max": 4, "n_batch": 64, "kv_type": "q8_0", "n_threads": 1
        }  # fmt: skip
        contexts.append(LlamaContext(model, **{**defaults, **settings}))
        return contexts[-1]

    yield make
    for context in contexts:
        context.close()


def feed(context: LlamaContext, sequence: int, first: int, n: int, token: int = 20) -> None:
    """``n`` tokens, each another one, in one batch; the last one wants logits."""
    tokens = [token + k % 50 for k in range(n)]
    wants = [False] * (n - 1) + [True]
    context.decode_tokens(tokens, range(first, first + n), [sequence] * n, wants)


def logits(model: LlamaModel, context: LlamaContext, row: int) -> NDArray[np.float32]:
    pointer = llama.llama_get_logits_ith(context.handle, row)
    return np.ctypeslib.as_array(pointer, (model.n_vocab,)).copy()


def test_next_position(make: Make) -> None:
    context = make()
    assert context.next_position(0) == 0
    feed(context, 0, 0, 5)
    feed(context, 0, 5, 3)
    assert (context.next_position(0), context.next_position(1)) == (8, 0)


def test_a_fork_shares_a_prefix(make: Make, model: LlamaModel) -> None:
    """Its continuation is the same as in a sequence that never had more."""
    context = make()
    feed(context, 0, 0, 40)
    context.fork(0, 1, 10)
    assert (context.next_position(0), context.next_position(1)) == (40, 10)
    feed(context, 1, 10, 2, token=90)
    forked = logits(model, context, 1)
    feed(context, 2, 0, 10)
    feed(context, 2, 10, 2, token=90)
    np.testing.assert_array_equal(forked, logits(model, context, 1))
    feed(context, 3, 0, 11)
    feed(context, 3, 11, 2, token=90)
    assert not np.array_equal(forked, logits(model, context, 1))


def test_a_fork_of_nothing(make: Make) -> None:
    context = make()
    feed(context, 0, 0, 5)
    context.fork(0, 1, 0)
    assert context.next_position(1) == 0


def test_forks_take_no_cells_and_free_them_with_their_last_user(make: Make) -> None:
    context = make(n_ctx=256)
    for k in range(4):
        feed(context, 0, 60 * k, 60)  # 240 of 256
    for branch in (1, 2, 3):
        context.fork(0, branch, 240)
    feed(context, 1, 240, 16)
    context.trim(0)
    context.trim(1)
    feed(context, 2, 240, 16)  # those of 1 are free, the shared ones are still there
    assert context.next_position(2) == 256
    context.trim(2)
    context.trim(3)
    feed(context, 0, 0, 64)


def test_trim_from_a_position(make: Make, model: LlamaModel) -> None:
    context = make()
    feed(context, 0, 0, 30)
    context.trim(0, 12)
    assert context.next_position(0) == 12
    feed(context, 0, 12, 1, token=7)
    after_trim = logits(model, context, 0)
    feed(context, 1, 0, 12)
    feed(context, 1, 12, 1, token=7)
    np.testing.assert_array_equal(after_trim, logits(model, context, 0))
    context.trim(3)  # an empty one: nothing happens


def test_one_batch_of_several_sequences(make: Make, model: LlamaModel) -> None:
    context = make()
    feed(context, 0, 0, 8)
    feed(context, 1, 0, 5, token=40)
    context.decode_tokens([3, 4], [8, 5], [0, 1], [True, True])
    together = [logits(model, context, row) for row in (0, 1)]
    context.trim(0, 8)
    context.trim(1, 5)
    for sequence, (token, position) in enumerate([(3, 8), (4, 5)]):
        context.decode_tokens([token], [position], [sequence], [True])
        np.testing.assert_array_equal(together[sequence], logits(model, context, 0))


def test_embeddings_are_positions_like_tokens(make: Make, model: LlamaModel) -> None:
    context = make()
    feed(context, 0, 0, 3)
    rows = np.random.default_rng(0).standard_normal((49, model.n_embd)).astype(np.float32)
    context.decode_embeddings(rows, 3, 0)
    assert context.next_position(0) == 52
    feed(context, 0, 52, 1)
    seen = logits(model, context, 0)
    context.trim(0, 3)
    context.decode_embeddings(rows[::-1].copy(), 3, 0)
    feed(context, 0, 52, 1)
    assert not np.array_equal(seen, logits(model, context, 0))


# -------------------------------------------------------------------------------- refusals
def test_a_gap_in_positions(make: Make) -> None:
    context = make()
    feed(context, 0, 0, 4)
    with pytest.raises(InvalidBatchError, match="place 6 does not follow the 4 tokens"):
        feed(context, 0, 6, 1)
    with pytest.raises(InvalidBatchError):
        feed(context, 0, 2, 1)
    feed(context, 0, 4, 1)
    assert context.next_position(0) == 5


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_outside_the_vocabulary(make: Make, token: int) -> None:
    context = make()
    with pytest.raises(InvalidBatchError):
        context.decode_tokens([token], [0], [0], [True])
    assert context.next_position(0) == 0


def test_a_sequence_beyond_the_last(make: Make) -> None:
    with pytest.raises(InvalidBatchError):
        feed(make(n_seq_max=4), 4, 0, 1)


@pytest.mark.parametrize("n", [0, 65, 300])
def test_the_size_of_a_batch(make: Make, model: LlamaModel, n: int) -> None:
    context = make(n_batch=64)
    with pytest.raises(InvalidBatchError, match=f"a batch of {n} rows: between 1 and 64"):
        context.decode_tokens([1] * n, range(n), [0] * n, [False] * n)
    with pytest.raises(InvalidBatchError, match=f"a batch of {n} rows"):
        context.decode_embeddings(np.zeros((n, model.n_embd), np.float32), 0, 0)
    feed(context, 0, 0, 64)


@pytest.mark.parametrize(
    ("width", "dtype"), [(255, np.float32), (512, np.float32), (256, np.float64)]
)
def test_embeddings_that_are_not_the_models(make: Make, width: int, dtype: Any) -> None:
    with pytest.raises(InvalidBatchError, match=rf"\[3, {width}\].*float32 \[3, 256\]"):
        make().decode_embeddings(np.zeros((3, width), dtype), 0, 0)


def test_a_full_cache_stays_as_it_is(make: Make, model: LlamaModel) -> None:
    context = make(n_ctx=256)
    for k in range(4):
        feed(context, 0, 60 * k, 60)
    feed(context, 1, 0, 8)
    with pytest.raises(NoCellsError, match="no free KV cells for 60 rows"):
        feed(context, 0, 240, 60)
    rows = np.zeros((20, model.n_embd), np.float32)
    with pytest.raises(NoCellsError):
        context.decode_embeddings(rows, 240, 0)
    assert (context.next_position(0), context.next_position(1)) == (240, 8)
    feed(context, 0, 240, 8)  # what fits still fits
    full = logits(model, context, 7)
    with pytest.raises(NoCellsError):
        feed(context, 1, 8, 1)
    other = make(n_ctx=512)
    for k in range(4):
        feed(other, 0, 60 * k, 60)
    feed(other, 0, 240, 8)
    np.testing.assert_array_equal(full, logits(model, other, 7))


@pytest.mark.parametrize(
    ("code", "error"), [(2, DecodeAbortedError), (-2, ComputeError), (-3, ComputeError)]
)
def test_native_codes(
    make: Make, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    def fail(_handle: object, _batch: object) -> int:
        native_log._receive(4, b"the device is on fire", None)
        return code

    context = make()
    native_log.recent_errors()
    monkeypatch.setattr(llama, "llama_decode", fail)
    with pytest.raises(error, match=f"2 rows .native code {code}.: the device is on fire"):
        feed(context, 0, 0, 2)


# -------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(("n_batch", "n_seq_max"), [(1, 4), (7, 16), (64, 200)])
def test_more_sequences_than_rows_of_a_batch(make: Make, n_batch: int, n_seq_max: int) -> None:
    """llama.cpp would abort the process."""
    context = make(n_batch=n_batch, n_seq_max=n_seq_max)
    feed(context, n_seq_max - 1, 0, max(n_batch, n_seq_max))


def test_a_batch_larger_than_the_cache(make: Make) -> None:
    """llama.cpp cuts the batch to the cache and would abort the process on more rows."""
    context = make(n_ctx=256, n_batch=1000)
    assert context.n_batch == 256
    with pytest.raises(InvalidBatchError):
        feed(context, 0, 0, 257)


def test_too_many_sequences(make: Make) -> None:
    with pytest.raises(ContextError, match="300 sequences .* 256.*fewer streams"):
        make(n_seq_max=300)
    with pytest.raises(ContextError, match="16 cells are too few for 17 sequences"):
        make(n_seq_max=17, n_ctx=16)


def test_a_head_size_that_cannot_be_quantized(make: Make, tmp_path: Path) -> None:
    llama.llama_log_set(native_log._receive, None)
    odd = LlamaModel(tiny_llama(tmp_path / "odd.gguf", head_dim=24))
    with pytest.raises(ContextError, match="256 cells and a q8_0 KV cache .*odd.gguf") as refusal:
        make(odd)
    assert "gave no reason" not in str(refusal.value)
    make(odd, kv_type="f16").close()
    odd.close()


def test_size_of_the_cache(make: Make) -> None:
    small, large = make(n_ctx=256), make(n_ctx=512)
    assert (small.n_ctx, large.n_ctx) == (256, 512)
    assert large.kv_bytes == 2 * small.kv_bytes
    assert make(kv_type="f16").kv_bytes == pytest.approx(small.kv_bytes * 32 / 17)
    assert make(kv_type="f32").kv_bytes == 2 * make(kv_type="bf16").kv_bytes


def test_closing_again_changes_nothing(make: Make) -> None:
    context = make()
    context.close()
    context.close()


# -------------------------------------------------------------------------------- transfers
def cells(context: LlamaContext, sequence: int, n: int) -> list[bytes]:
    """Rows of K and V of the first ``n`` positions, layer by layer."""
    blob = parse_state_blob(context.export_range(sequence, 0, n))
    positions, keys, values = blob.by_position()
    assert positions.tolist() == list(range(n))
    return [rows.tobytes() for rows in (*keys, *values)]


def test_a_range_goes_from_context_to_context(make: Make, model: LlamaModel) -> None:
    source, target = make(), make()
    feed(source, 0, 0, 40)
    feed(target, 1, 0, 9, token=70)
    for start, stop in [(0, 25), (25, 26), (26, 40)]:
        target.import_range(source.export_range(0, start, stop), 0, start, stop)
        assert target.next_position(0) == stop
    assert cells(source, 0, 40) == cells(target, 0, 40)
    feed(source, 0, 40, 2, token=7)
    there = logits(model, source, 1)
    feed(target, 0, 40, 2, token=7)
    np.testing.assert_array_equal(there, logits(model, target, 1))


def test_transfers_leave_the_scratch_sequence_empty(make: Make) -> None:
    context = make(n_seq_max=3)
    feed(context, 0, 0, 20)
    blob = context.export_range(0, 0, 20)
    assert context.next_position(2) == 0
    context.import_range(blob, 1, 0, 20)
    assert context.next_position(2) == 0
    with pytest.raises(ImportRefusedError):
        context.import_range(blob[:-34], 0, 20, 40)
    assert context.next_position(2) == 0


def test_an_import_that_fails_touches_nothing(make: Make) -> None:
    """llama.cpp would have wiped the sequence that it imports into."""
    context = make(n_ctx=256)
    feed(context, 0, 0, 60)
    blob = context.export_range(0, 30, 60)
    feed(context, 1, 0, 64)
    feed(context, 1, 64, 64)
    feed(context, 1, 128, 50)
    before = cells(context, 0, 60)
    with pytest.raises(ImportRefusedError, match="no free KV cells for 30 rows"):
        context.import_range(blob, 0, 60, 90)  # 18 are free
    context.trim(1)
    with pytest.raises(ImportRefusedError, match="imported the positions 30 to 60"):
        context.import_range(blob, 0, 60, 90)
    with pytest.raises(WrongRangeError, match="from 59 on does not follow 60"):
        context.import_range(blob, 0, 59, 89)
    assert cells(context, 0, 60) == before
    assert context.next_position(0) == 60
    feed(context, 1, 0, 64)  # the cells of what failed are free


def test_an_export_of_what_is_not_there(make: Make) -> None:
    """Nothing, or what there is of it: whoever asks knows what is there, and checks the blob."""
    context = make()
    feed(context, 0, 0, 10)
    assert parse_state_blob(context.export_range(0, 10, 20)).positions.size == 0
    assert parse_state_blob(context.export_range(0, 5, 20)).positions.tolist() == [5, 6, 7, 8, 9]


def test_an_export_that_fails(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make()
    feed(context, 0, 0, 10)
    monkeypatch.setattr(llama, "llama_state_seq_get_data_ext", lambda *_: 0)
    with pytest.raises(ExportError, match="0 of .* bytes of the positions 2 to 9"):
        context.export_range(0, 2, 9)
    assert context.next_position(3) == 0


# -------------------------------------------------------------------------------- order of cells
def rows(context: LlamaContext, sequence: int, n: int) -> list[np.ndarray]:
    """Positions, K rows and V rows of a sequence, by position."""
    blob = parse_state_blob(context.export_range(sequence, 0, n))
    positions, keys, values = blob.by_position()
    assert list(blob.positions) == sorted(blob.positions) or context.unordered
    return [positions, *keys, *values]


def equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def with_a_hole_below(context: LlamaContext) -> list[np.ndarray]:
    """Sequence 1, of which an answer has forked, goes on after what lay below it was given up."""
    for start in range(0, 200, 50):
        feed(context, 0, start, 50)
    feed(context, 1, 0, 50)
    feed(context, 1, 50, 50)
    context.fork(1, 2, 100)
    context.trim(0)
    for start in range(100, 300, 50):
        feed(context, 1, start, 50)
    return rows(context, 1, 300)


def test_a_hole_below_changes_nothing_that_is_computed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp would put new tokens into it, and attention would add up in another order."""
    alone = make(n_ctx=512)
    for start in range(0, 300, 50):
        feed(alone, 0, start, 50)
    expected = rows(alone, 0, 300)
    context = make(n_ctx=768)
    assert equal(with_a_hole_below(context), expected) and not context.unordered
    monkeypatch.setattr("edge_vlm_ros.engines.context._MAX_GRAVES", 0)
    context = make(n_ctx=768)
    assert not equal(with_a_hole_below(context), expected) and context.unordered == 200


def test_a_sequence_at_the_end_of_the_cache_is_moved_down(make: Make) -> None:
    alone = make(n_ctx=512)
    for start in range(0, 160, 40):
        feed(alone, 0, start, 40)
    expected = rows(alone, 0, 160)
    context = make(n_ctx=256)
    feed(context, 0, 0, 50)
    feed(context, 0, 50, 50)
    feed(context, 1, 0, 40)
    feed(context, 1, 40, 40)
    feed(context, 1, 80, 40)
    context.trim(0)
    feed(context, 1, 120, 40)
    assert equal(rows(context, 1, 160), expected) and not context.unordered


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_around_it_a_sequence_is_the_same(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    alone, context = make(n_ctx=1024), make(n_ctx=1024)
    chunks: list[list[int]] = [[], [], []]
    for _ in range(40):
        sequence, n = rng.randrange(3), rng.randint(1, 30)
        held = sum(chunks[sequence])
        if held + n > 250 or rng.random() < 0.15:
            context.trim(sequence)
            chunks[sequence] = []
            continue
        feed(context, sequence, held, n, token=7 + sequence)
        chunks[sequence].append(n)
        context.fork(sequence, 3, held)  # an answer that ends at once, or one step later
        if rng.random() < 0.5:
            feed(context, 3, held, rng.randint(1, 20))
        context.trim(3)
    assert not context.unordered
    for sequence, sizes in enumerate(chunks):
        for index, n in enumerate(sizes):
            feed(alone, sequence, sum(sizes[:index]), n, token=7 + sequence)
        if sizes:
            total = sum(sizes)
            assert equal(rows(context, sequence, total), rows(alone, sequence, total))
        alone.trim(sequence)
