"""Encoders in the Python that has onnxruntime-qnn, and answers to what they saw in this one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from edge_vlm_ros.demo.questions import Item, make_item
from edge_vlm_ros.demo.render import SceneRenderer
from edge_vlm_ros.model_profile import load_profile
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder
from tools.reference_loop import ReferenceLoop, load_heldout
from tools.setup import npu_qnn, npu_venv

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "config" / "models" / "demo.yaml"
MODEL = ROOT / "models" / "demo"


@dataclass(frozen=True)
class Encoded:
    embeddings: np.ndarray
    """float32 [n, n_tokens, n_embd]"""
    facts: dict[str, Any]


@dataclass(frozen=True)
class Scene:
    item: Item
    frames: np.ndarray
    """uint8 [n, 224, 224, 3]"""


def profile_with(folder: Path, *qnn: dict[str, Any], with_cpu: bool = False) -> Path:
    """The demo profile with these QNN backends, and the CPU behind them if asked for."""
    document = yaml.safe_load(DEMO.read_text())
    backends = [{"type": "qnn", "input": "image", "output": "embeds", **fields} for fields in qnn]
    document["encoder"]["backends"] = backends + (
        document["encoder"]["backends"] if with_cpu else []
    )
    text = yaml.safe_dump(document).replace("../../models", str(ROOT / "models"))
    path = folder / "profile.yaml"
    path.write_text(text)
    return path


def encode(
    profile: Path, frames: np.ndarray, cache: Path
) -> tuple[Encoded | None, subprocess.CompletedProcess[str]]:
    """What ``encode_frames`` gives; None when it fails. ``cache`` is the user's cache folder."""
    np.save(cache / "frames.npy", frames)
    out = cache / "out.npz"
    out.unlink(missing_ok=True)
    environment = npu_venv.environment() | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
    script = Path(__file__).with_name("encode_frames.py")
    ended = subprocess.run(
        [str(npu_qnn.ensure()), str(script), str(profile), str(cache / "frames.npy"), str(out)],
        capture_output=True,
        text=True,
        env=environment,
    )
    if not out.exists():
        return None, ended
    with np.load(out) as found:
        return Encoded(found["embeddings"], json.loads(str(found["facts"]))), ended


def write_small_model(path: Path) -> None:
    """A quantised model of two operations: it can be loaded and is nobody's encoder."""
    import onnx
    from onnx import TensorProto, helper

    shape = [1, 3, 224, 224]
    names = [("image", "scale", "zero"), ("quantised", "scale", "zero")]
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", names[0], ["quantised"]),
            helper.make_node("DequantizeLinear", names[1], ["embeds"]),
        ],
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("embeds", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor("scale", TensorProto.FLOAT, [], [1 / 255]),
            helper.make_tensor("zero", TensorProto.UINT8, [], [0]),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def heldout(n_items: int, most_frames: int) -> list[Scene]:
    """The first held-out items with few frames: the emulator takes seconds for each."""
    scenes = []
    for entry in load_heldout(MODEL / "heldout.json"):
        if entry["n_frames"] > most_frames or len(scenes) == n_items:
            continue
        item = make_item(entry["seed"], entry["n_frames"], entry["n_commit"])
        renderer = SceneRenderer(item.scene, entry["seed"])
        frames = np.stack([renderer.frame(k) for k in range(item.scene.n_frames)])
        scenes.append(Scene(item, frames))
    return scenes


def all_frames(scenes: list[Scene]) -> np.ndarray:
    return np.concatenate([scene.frames for scene in scenes])


def float_embeddings(frames: np.ndarray) -> np.ndarray:
    """By the demo profile's own ONNX file, on the CPU."""
    profile = load_profile(DEMO).encoder
    encoder = OnnxEncoder(profile, profile.backends[0])
    try:
        return np.stack([encoder.encode(frame) for frame in frames])
    finally:
        encoder.close()


def answers(scenes: list[Scene], embeddings: np.ndarray) -> list[str]:
    """The demo model's greedy answers about what an encoder made of the scenes' frames."""
    loop = ReferenceLoop(MODEL / "lm.Q8_0.gguf")
    rows = iter(embeddings)
    found = []
    for scene in scenes:
        loop.reset()
        for index in range(len(scene.frames)):
            loop.add_embeddings(next(rows))
            for turn in scene.item.commits:
                if turn.after_frame == index:
                    loop.commit(turn.question, turn.answer)
        found.append(loop.ask(scene.item.question.text)[1])
    loop.close()
    return found
