"""A GGUF file with random weights and the shape of a real model, to measure speed and memory.

    python -m tools.demo_model.random_gguf --shape qwen2.5-0.5b --type Q8_0 --out random.gguf

The text that it makes is noise. The tokenizer is the demo model's, filled up with unused tokens to
the real vocabulary size: the demo's prompt format works, and the output matrix costs what it costs
in the real model. Quantised blocks are drawn directly, so three billion parameters take seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tools.demo_model.gguf_file import FILE_TYPES, Shape, add_tokenizer, finish, open_gguf

SHAPES = {
    #              arch    layers  embd heads kv head  ff   vocab   ctx   theta
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e6),
    "demo": Shape("qwen3", 8, 256, 4, 2, 64, 768, 960, 4096, 1e4),
    "qwen2.5-1.5b": Shape("qwen2", 28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e6),
    "qwen2.5-3b": Shape("qwen2", 36, 2048, 16, 2, 128, 11008, 151936, 32768, 1e6),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6),
    "smollm2-135m": Shape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5),
    "smollm2-360m": Shape("llama", 32, 960, 15, 5, 64, 2560, 49152, 8192, 1e5),
}
TOKENIZER = Path(__file__).resolve().parents[2] / "models" / "demo" / "tokenizer.json"

# Per quantised type: bytes of a block of 32 weights, standard deviation of its integers.
_BLOCKS = {"Q8_0": (34, 73.9), "Q4_0": (18, 4.61)}


def matrix_sizes(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """(name, rows = outputs, columns = inputs) of every matrix of a layer block, by layer."""
    d, q, kv = shape.n_embd, shape.n_head * shape.head_dim, shape.n_kv * shape.head_dim
    for i in range(shape.n_layer):
        yield f"blk.{i}.attn_q.weight", q, d
        yield f"blk.{i}.attn_k.weight", kv, d
        yield f"blk.{i}.attn_v.weight", kv, d
        yield f"blk.{i}.attn_output.weight", d, q
        yield f"blk.{i}.ffn_gate.weight", shape.n_ff, d
        yield f"blk.{i}.ffn_up.weight", shape.n_ff, d
        yield f"blk.{i}.ffn_down.weight", d, shape.n_ff


def vectors(shape: Shape) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The norms (all one) and the biases (all zero)."""
    q, kv = shape.n_head * shape.head_dim, shape.n_kv * shape.head_dim
    yield "output_norm.weight", np.ones(shape.n_embd, np.float32)
    for i in range(shape.n_layer):
        yield f"blk.{i}.attn_norm.weight", np.ones(shape.n_embd, np.float32)
        yield f"blk.{i}.ffn_norm.weight", np.ones(shape.n_embd, np.float32)
        if shape.arch == "qwen2":
            for name, n in (("q", q), ("k", kv), ("v", kv)):
                yield f"blk.{i}.attn_{name}.bias", np.zeros(n, np.float32)
        if shape.arch == "qwen3":
            for name in ("q", "k"):
                yield f"blk.{i}.attn_{name}_norm.weight", np.ones(shape.head_dim, np.float32)


def random_matrix(
    rng: np.random.Generator, rows: int, columns: int, file_type: str
) -> npt.NDArray[Any]:
    """Weights of standard deviation columns ** -0.5: float16, or uint8 rows of blocks.

    The mean of quantised weights is 0, because the sign of a block's scale is random: with Q4_0
    integers, which go from -8 to 7, logits would be nearly constant otherwise.
    """
    deviation = columns**-0.5
    if file_type == "F16":
        normal = rng.standard_normal((rows, columns), dtype=np.float32)
        return np.asarray(normal * deviation, np.float16)
    size, integer_deviation = _BLOCKS[file_type]
    n_bytes = rows * columns // 32 * size
    words = rng.integers(0, 2**64, -(-n_bytes // 8), np.uint64)  # much faster than single bytes
    blocks = words.view(np.uint8)[:n_bytes].reshape(-1, size)
    low, high = np.float16(deviation / integer_deviation).tobytes()  # little-endian, like GGUF
    blocks[:, 0] = low
    blocks[:, 1] = blocks[:, 1] & 0x80 | high
    return blocks.reshape(rows, -1)


def write_random_gguf(
    path: str | Path,
    shape: Shape,
    file_type: str,
    seed: int = 0,
    never_chosen: Collection[int] = (),
) -> int:
    """Write the file; returns the number of parameters. Raises ValueError for unknown types.

    The rows of the tokens ``never_chosen`` are zero in the matrix that is both embedding and
    output, so that others have larger logits.
    """
    writer = open_gguf(path, shape, file_type, "random weights")
    add_tokenizer(writer, json.loads(TOKENIZER.read_text()), shape.vocab_size)
    rng = np.random.default_rng(seed)
    n_parameters = 0
    # Like llama.cpp's own quantiser: the matrix of the vocabulary stays finer than Q4_0.
    vocabulary_type = "Q8_0" if file_type == "Q4_0" else file_type
    matrices = [("token_embd.weight", shape.vocab_size, shape.n_embd, vocabulary_type)]
    matrices += [(*size, file_type) for size in matrix_sizes(shape)]
    for name, rows, columns, type_ in matrices:
        raw = None if type_ == "F16" else gguf.GGMLQuantizationType[type_]
        matrix = random_matrix(rng, rows, columns, type_)
        if name == "token_embd.weight":
            matrix[list(never_chosen)] = 0
        writer.add_tensor(name, matrix, raw_dtype=raw)
        n_parameters += rows * columns
    for name, values in vectors(shape):
        writer.add_tensor(name, values)
        n_parameters += values.size
    finish(writer)
    return n_parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--type", default="Q8_0", choices=FILE_TYPES)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.monotonic()
    n = write_random_gguf(args.out, SHAPES[args.shape], args.type, args.seed)
    print(
        f"{args.out}: {args.shape} {args.type}, {n / 1e6:.0f} M parameters, "
        f"{args.out.stat().st_size / 1e6:.0f} MB, {time.monotonic() - started:.1f} s"
    )


if __name__ == "__main__":
    main()
