"""The models that benchmarks run: the demo model, and random weights in the shape of real ones."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper

from edge_vlm_ros.model_profile import ModelProfile, load_profile
from edge_vlm_ros.vision.opening import open_untested
from tools.demo_model.random_gguf import SHAPES, TOKENIZER, write_random_gguf

ROOT = Path(__file__).resolve().parents[1]
DEMO_PROFILE = ROOT / "config" / "models" / "demo.yaml"
DEMO_ENCODER = ROOT / "models" / "demo" / "vision.onnx"
_SIZE, _GRID = 224, 7

EncoderKind = Literal["pooling", "demo"]
"""``pooling`` costs next to nothing; ``demo`` is the demo model's ViT and one more matrix."""


@dataclass(frozen=True)
class BenchmarkModel:
    """A model profile on disk and how its results are labelled."""

    label: str
    profile_path: Path

    @property
    def profile(self) -> ModelProfile:
        return load_profile(self.profile_path)


def demo_model() -> BenchmarkModel:
    return BenchmarkModel("demo model (6.5 M, Q8_0)", DEMO_PROFILE)


def random_model(
    shape: str,
    file_type: str,
    *,
    encoder: EncoderKind = "pooling",
    context_tokens: int = 4096,
    endless: bool = False,
) -> BenchmarkModel:
    """Random weights of a real shape, made once and kept in the user's cache folder.

    With ``endless`` the tokens that end an answer are never chosen, so that every answer is as long
    as it may be.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    name = f"{shape}.{file_type}" + (".endless" if endless else "")
    folder = cache / "edge_vlm_ros" / "benchmarks" / name
    weights = folder / "lm.gguf"
    if not weights.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"making random weights of the shape of {shape} in {folder}", flush=True)
        never = _special_tokens() if endless else ()
        write_random_gguf(folder / "lm.part", SHAPES[shape], file_type, never_chosen=never)
        (folder / "lm.part").rename(weights)
    write = {"pooling": _write_pooling_encoder, "demo": _write_demo_encoder}[encoder]
    write(folder / f"vision.{encoder}.onnx", SHAPES[shape].n_embd)
    profile_path = folder / f"profile.{encoder}.yaml"
    _write_profile(profile_path, shape, encoder, context_tokens)
    return BenchmarkModel(f"{shape} shape, random weights, {file_type}", profile_path)


def _special_tokens() -> list[int]:
    """Of the demo's tokenizer, which all random models have: those that end an answer are some."""
    tokens = json.loads(TOKENIZER.read_text())["added_tokens"]
    return [token["id"] for token in tokens if token["special"]]


def _write_pooling_encoder(path: Path, n_embd: int) -> None:
    """49 tokens a frame by average pooling and one matrix: encoding costs next to nothing, so that
    a benchmark of language engines measures those."""
    pool = _SIZE // _GRID
    nodes = [
        helper.make_node(
            "AveragePool", ["image"], ["cells"], kernel_shape=[pool, pool], strides=[pool, pool]
        ),
        helper.make_node("Reshape", ["cells", "shape"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["tokens"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["tokens", "weights"], ["embeds"]),
    ]
    graph = helper.make_graph(
        nodes,
        "random_encoder",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, _SIZE, _SIZE])],
        [helper.make_tensor_value_info("embeds", TensorProto.FLOAT, [1, _GRID**2, n_embd])],
        [
            numpy_helper.from_array(_random_matrix(3, n_embd), "weights"),
            numpy_helper.from_array(np.array([1, 3, _GRID**2], np.int64), "shape"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def _write_demo_encoder(path: Path, n_embd: int) -> None:
    """The demo model's encoder (a ViT of 3.6 M weights, 49 tokens), made wider by one matrix."""
    model = onnx.load(DEMO_ENCODER)
    graph, (output,) = model.graph, model.graph.output
    width = output.type.tensor_type.shape.dim[2].dim_value
    matrix = _random_matrix(width, n_embd) / np.float32(width**0.5)
    graph.initializer.append(numpy_helper.from_array(matrix, "widening"))
    graph.node.append(helper.make_node("MatMul", [output.name, "widening"], ["wide_embeds"]))
    wide = helper.make_tensor_value_info("wide_embeds", TensorProto.FLOAT, [1, _GRID**2, n_embd])
    del graph.output[:]
    graph.output.append(wide)
    onnx.save(model, path)


def _random_matrix(rows: int, columns: int) -> np.typing.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def _write_profile(path: Path, shape: str, encoder_kind: EncoderKind, context_tokens: int) -> None:
    document = yaml.safe_load(DEMO_PROFILE.read_text())
    document["name"] = shape
    document["language"] = {"file": "lm.gguf", "context_tokens": context_tokens}
    encoder = document["encoder"]
    backend = encoder["backends"][0]
    del backend["sha256"]
    file, reference = f"vision.{encoder_kind}.onnx", f"reference.{encoder_kind}.npz"
    backend["file"] = file
    encoder.update(n_embd=SHAPES[shape].n_embd, reference=reference)
    if encoder_kind == "demo":
        backend["output"] = "wide_embeds"
    document["history"]["max_turns"] = 0
    path.write_text(yaml.safe_dump(document))
    rgb = np.random.default_rng(1).integers(0, 255, (_SIZE, _SIZE, 3), np.uint8)
    embeddings = open_untested(load_profile(path).encoder).encode(rgb)
    np.savez(path.parent / reference, rgb=rgb, embeddings=embeddings)
