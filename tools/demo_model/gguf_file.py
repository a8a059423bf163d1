"""Writes the parts that every GGUF file of the project has in common. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

PRE_TOKENIZER = "smollm"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7}  # general.file_type


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder-only language model whose output matrix is its embedding matrix."""

    arch: str  # qwen2 | qwen3 | llama
    n_layer: int
    n_embd: int
    n_head: int
    n_kv: int
    head_dim: int
    n_ff: int
    vocab_size: int
    n_ctx: int
    rope_theta: float
    eps: float = 1e-6  # of the norms


def open_gguf(
    path: str | Path, shape: Shape, file_type: str, name: str, license_id: str | None = None
) -> Any:
    """A gguf.GGUFWriter with the sizes written. Raises ValueError for an unknown file type."""
    if file_type not in FILE_TYPES:
        raise ValueError(f"file type must be one of {', '.join(FILE_TYPES)}, got {file_type}")
    writer = gguf.GGUFWriter(str(path), shape.arch)
    writer.add_type("model")
    writer.add_name(name)
    if license_id is not None:
        writer.add_license(license_id)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_file_type(FILE_TYPES[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    return writer


def add_tokenizer(writer: Any, tokenizer: dict[str, Any], vocab_size: int) -> None:
    """Write a tokenizer.json's byte-level BPE, filled up with unused tokens to vocab_size."""
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    text_of = {i: text for text, i in vocab.items()}
    special = {t["id"] for t in tokenizer["added_tokens"] if t["special"]}
    tokens, types = [], []
    for i in range(vocab_size):
        tokens.append(text_of.get(i, f"<|unused_{i}|>"))
        if i in special:
            types.append(gguf.TokenType.CONTROL)
        else:
            types.append(gguf.TokenType.NORMAL if i in text_of else gguf.TokenType.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(vocab["<|endoftext|>"])
    writer.add_eos_token_id(vocab["<|im_end|>"])
    writer.add_pad_token_id(vocab["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
