"""Frames that are text: so that a server that takes tokens can be given the very same history.

A stand-in frame is 49 ordinary tokens. To llama-server they are tokens of the prompt; to the
runtime they are a picture of 7x7 pixels whose colours are the tokens' numbers, and whose "encoder"
looks up their rows in the language model's own embedding matrix. Both then compute the same.

The models are random weights in real shapes in which some tokens have an empty row in the (tied)
output matrix and so are never chosen: those that end an answer, and pieces of characters, which a
server holds back until the character is whole. Every answer is as long as it was asked to be.
"""

from __future__ import annotations

import json
import os
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper

from edge_vlm_ros.model_profile import load_profile
from edge_vlm_ros.vision.opening import open_untested
from tools.demo_model.gguf_file import Shape
from tools.demo_model.random_gguf import SHAPES, TOKENIZER, write_random_gguf

from .models import DEMO_PROFILE, BenchmarkModel

Picture = npt.NDArray[np.uint8]
ShapeName = Literal["demo", "qwen2.5-0.5b"]

TOKENS = 49
"""Tokens of a stand-in frame, as many as the demo model's encoder makes of a picture."""
MAX_FRAMES = 32
_GRID = 7
_N_IDS = 1024  # the encoder's table ends here; the demo's tokenizer ends before
_DEMO_SHAPE = Shape("qwen3", 8, 256, 4, 2, 64, 768, 960, 4096, 1e4)


@dataclass(frozen=True)
class StandIn:
    """One frame: 49 token ids, and the picture that stands for them."""

    token_ids: tuple[int, ...]

    @property
    def picture(self) -> Picture:
        """uint8 [7, 7, 3]: red and green are the low and the high byte of a token id."""
        ids = np.array(self.token_ids, np.uint16).reshape(_GRID, _GRID)
        return np.stack([ids & 255, ids >> 8, np.zeros_like(ids)], axis=2).astype(np.uint8)


def stand_in(stream: int, number: int) -> StandIn:
    """The ``number``-th frame of a stream: random words, the same in every run."""
    chosen = np.random.default_rng((stream, number)).choice(word_ids(), TOKENS)
    return StandIn(tuple(int(token) for token in chosen))


def word_ids() -> list[int]:
    """The tokens of the demo's tokenizer that are whole printable characters, spaces included."""
    tokenizer = json.loads(TOKENIZER.read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    allowed = set(string.ascii_letters + string.digits + string.punctuation + "Ġ")
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    return sorted(i for text, i in vocabulary.items() if i not in special and set(text) <= allowed)


def stand_in_model(name: ShapeName) -> BenchmarkModel:
    """Random Q8_0 weights of a shape and the encoder that looks up tokens, made once and kept in
    the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "edge_vlm_ros" / "benchmarks" / f"stand_ins.{name}"
    shape = _DEMO_SHAPE if name == "demo" else SHAPES[name]
    weights = folder / "lm.gguf"
    if not weights.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"making random weights of the shape of {name} in {folder}", flush=True)
        partial = folder / "lm.part"
        write_random_gguf(partial, shape, "Q8_0")
        never_choose(partial, sorted(set(range(_n_words())) - set(word_ids())))
        partial.rename(weights)
    write_lookup_encoder(folder / "vision.onnx", embedding_rows(weights, _N_IDS))
    profile = _write_profile(folder, name, shape)
    size = "6.5 M" if name == "demo" else name.rsplit("-", 1)[-1].upper()
    return BenchmarkModel(f"shape of {name} ({size}), random weights, Q8_0", profile)


def never_choose(weights: Path, token_ids: list[int]) -> None:
    """Make the rows of tokens zero in the matrix that is both embedding and output."""
    reader = gguf.GGUFReader(weights, "r+")
    matrix = _embedding(reader).data
    matrix[token_ids] = 0
    matrix.flush()


def embedding_rows(weights: Path, n: int) -> npt.NDArray[np.float32]:
    """The first ``n`` rows of the embedding matrix, float32 [<= n, n_embd], as llama.cpp gets
    them."""
    tensor = _embedding(gguf.GGUFReader(weights))
    rows = gguf.quants.dequantize(np.array(tensor.data[:n]), tensor.tensor_type)
    return np.asarray(rows, np.float32)


def write_lookup_encoder(path: Path, rows: npt.NDArray[np.float32]) -> None:
    """An encoder whose embeddings of a picture are the rows that its colours name; any other
    picture, as a calibration shows, is taken for some rows too."""
    nodes = [
        helper.make_node("Mul", ["image", "bytes"], ["parts"]),
        helper.make_node("ReduceSum", ["parts", "colours"], ["numbers"], keepdims=0),
        helper.make_node("Reshape", ["numbers", "shape"], ["flat"]),
        helper.make_node("Cast", ["flat"], ["any_ids"], to=TensorProto.INT64),
        helper.make_node("Mod", ["any_ids", "n_rows"], ["ids"]),
        helper.make_node("Gather", ["rows", "ids"], ["embeds"]),
    ]
    n_embd = rows.shape[1]
    graph = helper.make_graph(
        nodes,
        "token_lookup",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, _GRID, _GRID])],
        [helper.make_tensor_value_info("embeds", TensorProto.FLOAT, [1, TOKENS, n_embd])],
        [
            numpy_helper.from_array(np.array([1, 256, 0], np.float32).reshape(1, 3, 1, 1), "bytes"),
            numpy_helper.from_array(np.array([1], np.int64), "colours"),
            numpy_helper.from_array(np.array([1, TOKENS], np.int64), "shape"),
            numpy_helper.from_array(np.array([len(rows)], np.int64), "n_rows"),
            numpy_helper.from_array(rows, "rows"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def _n_words() -> int:
    return len(json.loads(TOKENIZER.read_text())["model"]["vocab"])


def _embedding(reader: Any) -> Any:
    return next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")


def _write_profile(folder: Path, name: str, shape: Shape) -> Path:
    document = yaml.safe_load(DEMO_PROFILE.read_text())
    document["name"] = f"stand-ins.{name}"
    document["description"] = "frames that are text, for a benchmark"
    document["language"] = {"file": "lm.gguf", "context_tokens": 4096}
    document["encoder"] = {
        "backends": [{"type": "onnx", "file": "vision.onnx", "input": "image", "output": "embeds"}],
        "size": [_GRID, _GRID],
        "resize": "stretch",
        "scale": 1.0,
        "n_tokens": TOKENS,
        "n_embd": shape.n_embd,
        "reference": "reference.npz",
    }
    document["history"] = {
        "max_frames": MAX_FRAMES,
        "keep_frames": 1,  # more would be computed ahead while the other side is measured
        "max_turns": 0,
    }
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(document))
    picture = stand_in(0, 0).picture
    embeddings = open_untested(load_profile(path).encoder).encode(picture)
    np.savez(folder / "reference.npz", rgb=picture, embeddings=embeddings)
    return path
