"""The choice of a token depends on logits, seed and its place in the answer, on nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest

from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.sampling import Sampler, SamplingParameters, _token_seed

P = SamplingParameters
WARM = P(temperature=5.0, seed=4)


@pytest.fixture(scope="module")
def context(model: LlamaModel) -> Iterator[LlamaContext]:
    """Holds the logits after eight tokens, in batch row 7."""
    context = LlamaContext(model, n_ctx=256, n_seq_max=2, n_batch=64, kv_type="q8_0", n_threads=1)
    context.decode_tokens(range(30, 38), range(8), [0] * 8, [False] * 7 + [True])
    yield context
    context.close()


def choices(
    model: LlamaModel, context: LlamaContext, parameters: SamplingParameters, indices: range
) -> list[int]:
    sampler = Sampler(parameters, model.n_vocab)
    chosen = [sampler.sample(context.handle, 7, index) for index in indices]
    sampler.close()
    return chosen


@pytest.mark.parametrize("k", [0, 1, 5, 29])
@pytest.mark.parametrize(
    "parameters",
    [
        P(),
        WARM,
        P(temperature=3.0, top_k=8, seed=1),
        P(temperature=3.0, top_p=0.9, min_p=0.01, repeat_penalty=1.5, seed=2),
        P(repeat_penalty=2.0),
        P(temperature=4.0, repeat_penalty=0.5, seed=2**32 - 2),
    ],
)
def test_another_sampler_goes_on_as_the_first_would_have(
    model: LlamaModel, context: LlamaContext, parameters: SamplingParameters, k: int
) -> None:
    whole = choices(model, context, parameters, range(30))
    sampler = Sampler(parameters, model.n_vocab)
    for token in whole[:k]:
        sampler.accept(token)
    assert [sampler.sample(context.handle, 7, index) for index in range(k, 30)] == whole[k:]
    sampler.close()


def test_what_was_generated_elsewhere_counts_for_the_penalty(
    model: LlamaModel, context: LlamaContext
) -> None:
    parameters = P(repeat_penalty=10.0)
    (greedy,) = choices(model, context, parameters, range(1))
    sampler = Sampler(parameters, model.n_vocab)
    sampler.accept(greedy)
    assert sampler.sample(context.handle, 7, 1) != greedy
    sampler.close()


def test_choices_follow_the_distribution(model: LlamaModel, context: LlamaContext) -> None:
    """Over the tokens of an answer, and over seeds."""
    logits = np.ctypeslib.as_array(
        llama.llama_get_logits_ith(context.handle, 7), (model.n_vocab,)
    ).astype(np.float64)
    weights = np.exp((logits - logits.max()) / WARM.temperature)
    expected = weights / weights.sum()
    n = 3000
    over_tokens = choices(model, context, WARM, range(n))
    over_seeds = [
        choices(model, context, P(temperature=WARM.temperature, seed=seed), range(1))[0]
        for seed in range(n)
    ]
    for chosen in (over_tokens, over_seeds):
        counts = Counter(chosen)
        for token in np.argsort(expected)[-8:]:
            p = float(expected[token])
            assert counts[int(token)] == pytest.approx(n * p, abs=4.5 * math.sqrt(n * p * (1 - p)))


def test_no_two_tokens_share_a_seed() -> None:
    seeds = {_token_seed(seed, index) for seed in range(50) for index in range(200)}
    assert len(seeds) > 9_990  # of 32 bits: a chance meeting is possible
    assert all(0 <= seed < 2**32 - 1 for seed in seeds)
