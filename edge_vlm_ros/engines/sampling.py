"""How the next token is chosen, as llama.cpp's sampler chain."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import llama_cpp.llama_cpp as llama
import numpy as np

PENALTY_LAST_N = 64
"""Generated tokens that the repetition penalty looks back on: llama.cpp's default."""

LOWEST_TEMPERATURE = 1e-5

_NO_SEED = 2**32 - 1
"""Taken by llama.cpp as a wish for a seed that nobody knows."""


@dataclass(frozen=True)
class SamplingParameters:
    """Greedy by default. Raises ValueError for values outside their ranges.

    ``temperature`` 0 is greedy, and so is anything below 0.00001, where llama.cpp's numbers
    overflow; ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repeat_penalty`` 1 switch the respective
    filter off; ``seed`` decides the random choice.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        usual = 0 <= self.temperature <= 100
        _require(usual, "temperature", self.temperature, "between 0 and 100")
        _require(0 <= self.top_k < 2**31, "top_k", self.top_k, "0 or more, and below 2^31")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0, at most 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1")
        usual = 0.1 <= self.repeat_penalty <= 10
        _require(usual, "repeat_penalty", self.repeat_penalty, "between 0.1 and 10")
        _require(0 <= self.seed < _NO_SEED, "seed", self.seed, "between 0 and 4294967294")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < LOWEST_TEMPERATURE


def _require(condition: bool, name: str, value: float, expected: str) -> None:
    # A NaN fails every comparison and is refused with the rest.
    if not condition:
        raise ValueError(f"sampling: {name} must be {expected}, not {value}")


class Sampler:
    """One answer's sampler chain. Used by the thread that owns the context only.

    The random choice of a token depends on nothing but the seed and the index of the token in its
    answer, so an answer can go on with another sampler. What the repetition penalty looks back on
    is told to that one with ``accept``.
    """

    def __init__(self, parameters: SamplingParameters, n_vocab: int) -> None:
        p = parameters
        self._n_vocab = n_vocab
        self._seed = p.seed
        self._is_greedy = p.is_greedy
        self._plain_greedy = p.is_greedy and p.repeat_penalty == 1.0
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        if p.repeat_penalty != 1.0:
            repeat, frequency, presence = p.repeat_penalty, 0.0, 0.0
            self._add(
                llama.llama_sampler_init_penalties(
                    n_vocab, PENALTY_LAST_N, repeat, frequency, presence
                )
            )
        if p.is_greedy:
            self._add(llama.llama_sampler_init_greedy())
            return
        if p.top_k:
            self._add(llama.llama_sampler_init_top_k(p.top_k))
        if p.top_p < 1.0:
            self._add(llama.llama_sampler_init_top_p(p.top_p, 1))
        if p.min_p > 0.0:
            self._add(llama.llama_sampler_init_min_p(p.min_p, 1))
        self._add(llama.llama_sampler_init_temp(p.temperature))

    def accept(self, token: int) -> None:
        """Remember a token that was chosen elsewhere."""
        llama.llama_sampler_accept(self._chain, token)

    def sample(self, context: object, row: int, index: int) -> int:
        """Token ``index`` of the answer, after the logits of batch row ``row``; it is remembered
        for the penalty."""
        if self._plain_greedy:
            # The choice of llama.cpp's greedy sampler, which first copies the whole vocabulary
            # into a list of candidates: 3 % of a decode step with 150 000 tokens.
            logits = llama.llama_get_logits_ith(context, row)
            return int(np.ctypeslib.as_array(logits, (self._n_vocab,)).argmax())
        if self._is_greedy:
            return int(llama.llama_sampler_sample(self._chain, context, row))
        self._add(llama.llama_sampler_init_dist(_token_seed(self._seed, index)))
        try:
            return int(llama.llama_sampler_sample(self._chain, context, row))
        finally:
            last = llama.llama_sampler_chain_n(self._chain) - 1
            llama.llama_sampler_free(llama.llama_sampler_chain_remove(self._chain, last))

    def close(self) -> None:
        llama.llama_sampler_free(self._chain)

    def _add(self, sampler: object) -> None:
        llama.llama_sampler_chain_add(self._chain, sampler)


def _token_seed(seed: int, index: int) -> int:
    """A seed for the choice of one token: neither seeds nor tokens near each other share one."""
    digest = hashlib.blake2b(struct.pack("<II", seed, index), digest_size=8).digest()
    return int.from_bytes(digest, "little") % _NO_SEED
