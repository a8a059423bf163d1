"""The vocabulary of a random model: the demo's byte-level BPE and the special tokens of the model
whose architecture it has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf

TOKENIZER = Path(__file__).resolve().parents[2] / "models" / "demo" / "tokenizer.json"
N_TOKENS = 1024


def add_vocabulary(writer: Any, specials: Sequence[str], words: Sequence[str] = ()) -> None:
    """Write it. ``specials`` are control tokens; ``words`` plain ones in the BPE's own alphabet.

    Raises ValueError when there is no room for them.
    """
    tokenizer = json.loads(TOKENIZER.read_text(encoding="utf-8"))
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    controls = {t["content"] for t in tokenizer["added_tokens"] if t["special"]} | set(specials)
    tokens += [text for text in (*specials, *words) if text not in vocab]
    if len(tokens) > N_TOKENS:
        raise ValueError(f"{len(tokens)} tokens do not fit a vocabulary of {N_TOKENS}")
    kinds = [
        gguf.TokenType.CONTROL if text in controls else gguf.TokenType.NORMAL for text in tokens
    ]
    n_unused = N_TOKENS - len(tokens)
    tokens += [f"<|unused_{index}|>" for index in range(n_unused)]
    kinds += [gguf.TokenType.UNUSED] * n_unused
    writer.add_vocab_size(N_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(vocab["<|endoftext|>"])
    writer.add_eos_token_id(vocab["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
