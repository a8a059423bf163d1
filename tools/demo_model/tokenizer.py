"""The tokenizer: byte-level BPE whose pre-tokenizer llama.cpp knows by name (`smollm`)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from edge_vlm_ros.demo.questions import qa
from edge_vlm_ros.demo.world import Scene

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
)
PRE_TOKENIZER = "smollm"  # llama.cpp's name: digits one by one, then the GPT-2 pattern


def corpus(n_scenes: int, seed: int) -> Iterator[str]:
    """Questions and answers as in training, with the role words of ChatML."""
    rng = random.Random(seed)
    for _ in range(n_scenes):
        scene = Scene.random(rng)
        for _ in range(3):
            turn = qa(scene, rng)
            assert turn is not None
            yield f"user\n{turn[1]}\nassistant\n{turn[2]}\n"


def train_tokenizer(vocab_size: int = 1024, n_scenes: int = 8000, seed: int = 7) -> Tokenizer:
    """All 256 bytes are in the vocabulary, so any text can be encoded."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus(n_scenes, seed), trainer)
    return tokenizer


class PromptEncoder:
    """Token ids of the pieces of a stream. IMAGE stands for an image token.

    The texts are those of tools.reference_loop.PromptFormat. Words are cached: the pre-tokenizer
    never merges across them.
    """

    IMAGE = -1
    _WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")

    def __init__(self, tokenizer: Tokenizer, n_image_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._words: dict[str, list[int]] = {}
        self.open = self._special("<|im_start|>user\n")
        self.ask_end = self._special("<|im_end|>\n<|im_start|>assistant\n")
        self.close = self._special("<|im_end|>\n<|im_start|>user\n")
        image = [self.IMAGE] * n_image_tokens
        before, after = self._special("<|vision_start|>"), self._special("<|vision_end|>\n")
        self.frame = before + image + after
        (self.stop,) = self._special("<|im_end|>")

    def _special(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def text(self, text: str) -> list[int]:
        """Ids of ASCII text without special tokens."""
        ids: list[int] = []
        for word in self._WORD.findall(text):
            if word not in self._words:
                self._words[word] = list(self._tokenizer.encode(word).ids)
            ids += self._words[word]
        return ids

    def question(self, text: str) -> list[int]:
        return self.text(text) + self.ask_end
