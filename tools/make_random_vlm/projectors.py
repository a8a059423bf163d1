"""Projector files (mmproj) of the types that llama.cpp knows, cut down, with random weights.

Each function draws one type's vision transformer and projector. Tensor names and metadata keys are
those that llama.cpp's own converters write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from .weights import Weights

MEAN, STD = [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]


@dataclass(frozen=True)
class VisionShape:
    """Sizes of a vision transformer over pictures or tiles of ``image`` pixels a side.

    ``merge`` x ``merge`` patches become one token, where the type has that. idefics3 enlarges
    pictures to ``enlarge_to`` pixels first, unless it is 0; minicpmv makes ``n_queries`` tokens.
    """

    image: int = 32
    patch: int = 8
    d: int = 32
    n_ff: int = 64
    n_layer: int = 2
    n_head: int = 2
    merge: int = 2
    enlarge_to: int = 0
    n_queries: int = 6

    @property
    def n_patches(self) -> int:
        return (self.image // self.patch) ** 2


@dataclass(frozen=True)
class Drawing:
    """What the functions below draw with: ``n_out`` is the width of the language model."""

    writer: Any
    weights: Weights
    shape: VisionShape
    n_out: int

    def key(self, name: str, value: Any) -> None:
        """A metadata key below ``clip.``"""
        add: Callable[[str, Any], None]
        if isinstance(value, bool):
            add = self.writer.add_bool
        elif isinstance(value, int):
            add = self.writer.add_uint32
        elif isinstance(value, str):
            add = self.writer.add_string
        else:
            add = self.writer.add_array
        add(f"clip.{name}", value)


Projector = Callable[[Drawing], None]


def write_projector(
    path: Path, kind: str, draw: Projector, shape: VisionShape, n_out: int, seed: int
) -> None:
    """Write a projector of the type ``kind``, drawn by ``draw``."""
    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_name(f"random {kind}")
    drawing = Drawing(writer, Weights(writer, seed), shape, n_out)
    for name, value in (
        ("has_vision_encoder", True),
        ("projector_type", kind),
        ("vision.image_size", shape.image),
        ("vision.patch_size", shape.patch),
        ("vision.embedding_length", shape.d),
        ("vision.feed_forward_length", shape.n_ff),
        ("vision.projection_dim", n_out),
        ("vision.block_count", shape.n_layer),
        ("vision.attention.head_count", shape.n_head),
        ("vision.image_mean", MEAN),
        ("vision.image_std", STD),
    ):
        drawing.key(name, value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    draw(drawing)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _layers(
    drawing: Drawing, *, gated: bool = False, bias: bool = True, norm_bias: bool = True
) -> None:
    weights, d, ff = drawing.weights, drawing.shape.d, drawing.shape.n_ff
    for index in range(drawing.shape.n_layer):
        prefix = f"v.blk.{index}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            weights.linear(f"{prefix}.{name}", d, d, bias=bias)
        weights.norm(f"{prefix}.ln1", d, bias=norm_bias)
        weights.norm(f"{prefix}.ln2", d, bias=norm_bias)
        if gated:
            weights.linear(f"{prefix}.ffn_gate", ff, d, bias=bias)
        weights.linear(f"{prefix}.ffn_up", ff, d, bias=bias)
        weights.linear(f"{prefix}.ffn_down", d, ff, bias=bias)


def _patches(drawing: Drawing, *, n_positions: int = 0, bias: bool = True) -> None:
    weights, shape = drawing.weights, drawing.shape
    weights.kernel("v.patch_embd.weight", shape.d, 3, shape.patch)
    if bias:
        weights.normal("v.patch_embd.bias", shape.d)
    if n_positions:
        weights.normal("v.position_embd.weight", n_positions, shape.d)


def _siglip(drawing: Drawing) -> None:
    _patches(drawing, n_positions=drawing.shape.n_patches)
    _layers(drawing)
    drawing.weights.norm("v.post_ln", drawing.shape.d)


def idefics3(drawing: Drawing) -> None:
    """SigLIP, pixel shuffle, one matrix."""
    shape = drawing.shape
    drawing.key("use_gelu", True)
    drawing.key("vision.projector.scale_factor", shape.merge)
    if shape.enlarge_to:
        drawing.key("vision.preproc_image_size", shape.enlarge_to)
    _siglip(drawing)
    drawing.weights.matrix("mm.model.fc.weight", drawing.n_out, shape.d * shape.merge**2)


def internvl(drawing: Drawing) -> None:
    """InternViT with layer scales and a class token, pixel shuffle, norm and two matrices."""
    shape, weights = drawing.shape, drawing.weights
    drawing.key("use_gelu", True)
    drawing.key("vision.projector.scale_factor", shape.merge)
    weights.normal("v.class_embd", shape.d)
    _patches(drawing, n_positions=shape.n_patches + 1)
    _layers(drawing)
    for index in range(shape.n_layer):
        weights.normal(f"v.blk.{index}.ls1.weight", shape.d, scale=1.0)
        weights.normal(f"v.blk.{index}.ls2.weight", shape.d, scale=1.0)
    weights.norm("mm.model.mlp.0", shape.d * shape.merge**2)
    weights.linear("mm.model.mlp.1", drawing.n_out, shape.d * shape.merge**2)
    weights.linear("mm.model.mlp.3", drawing.n_out, drawing.n_out)


def _clip(drawing: Drawing) -> None:
    """OpenAI's CLIP: a class token and a norm before the first layer."""
    drawing.weights.normal("v.class_embd", drawing.shape.d)
    _patches(drawing, n_positions=drawing.shape.n_patches + 1, bias=False)
    drawing.weights.norm("v.pre_ln", drawing.shape.d)
    _layers(drawing)


def llava(drawing: Drawing) -> None:
    """CLIP and two matrices; one square picture."""
    _clip(drawing)
    drawing.weights.linear("mm.0", drawing.n_out, drawing.shape.d)
    drawing.weights.linear("mm.2", drawing.n_out, drawing.n_out)


def llava_onevision(drawing: Drawing) -> None:
    """SigLIP, two matrices; an overview and tiles in one of several grids."""
    side = drawing.shape.image
    drawing.key("use_gelu", True)
    grids = [(1, 2), (2, 1), (2, 2)]
    pinpoints = [size for rows, columns in grids for size in (rows * side, columns * side)]
    drawing.key("vision.image_grid_pinpoints", pinpoints)
    drawing.key("vision.mm_patch_merge_type", "spatial_unpad")
    _patches(drawing, n_positions=drawing.shape.n_patches)
    _layers(drawing)
    drawing.weights.linear("mm.0", drawing.n_out, drawing.shape.d)
    drawing.weights.linear("mm.2", drawing.n_out, drawing.n_out)
    drawing.weights.normal("v.image_newline", drawing.n_out)


def granite_vision(drawing: Drawing) -> None:
    """SigLIP whose layers' outputs are put side by side, two matrices; tiles as LLaVA-OneVision."""
    side, n_layer = drawing.shape.image, drawing.shape.n_layer
    drawing.key("use_gelu", True)
    drawing.key("vision.image_grid_pinpoints", [side, 2 * side, 2 * side, side])
    drawing.key("vision.feature_layer", list(range(n_layer + 1)))
    _siglip(drawing)
    drawing.weights.linear("mm.0", drawing.n_out, drawing.shape.d * (n_layer + 1))
    drawing.weights.linear("mm.2", drawing.n_out, drawing.n_out)
    drawing.weights.normal("v.image_newline", drawing.n_out)


def ldpv2(drawing: Drawing) -> None:
    """CLIP, two matrices, average pooling and a depthwise convolution (MobileVLM V2)."""
    _clip(drawing)
    drawing.weights.linear("mm.model.mlp.0", drawing.n_out, drawing.shape.d)
    drawing.weights.linear("mm.model.mlp.2", drawing.n_out, drawing.n_out)
    drawing.weights.kernel("mm.model.peg.0.weight", drawing.n_out, 1, 3)
    drawing.weights.normal("mm.model.peg.0.bias", drawing.n_out)


def minicpmv(version: int) -> Projector:
    """SigLIP and a resampler: learned queries that attend to the patches."""
    return functools.partial(_minicpmv, version=version)


def _minicpmv(drawing: Drawing, version: int) -> None:
    weights, n_out, n_queries = drawing.weights, drawing.n_out, drawing.shape.n_queries
    drawing.key("use_gelu", True)
    drawing.writer.add_int32("clip.minicpmv_version", version)
    drawing.key("minicpmv_query_num", n_queries)
    _patches(drawing, n_positions=70 * 70)
    _layers(drawing)
    weights.norm("v.post_ln", drawing.shape.d)
    weights.normal("resampler.query", n_queries, n_out, scale=1.0)
    weights.normal("resampler.pos_embed_k", 70 * 70, n_out)
    weights.matrix("resampler.kv.weight", n_out, drawing.shape.d)
    for name in ("q", "k", "v", "out"):
        weights.linear(f"resampler.attn.{name}", n_out, n_out)
    for name in ("q", "kv", "post"):
        weights.norm(f"resampler.ln_{name}", n_out)
    weights.matrix("resampler.proj.weight", n_out, n_out)


def pixtral(drawing: Drawing) -> None:
    """A gated transformer with 2D RoPE and RMS norms, two matrices, a row separator."""
    weights = drawing.weights
    drawing.key("use_silu", True)
    _patches(drawing, bias=False)
    weights.norm("v.pre_ln", drawing.shape.d, bias=False)
    _layers(drawing, gated=True, bias=False, norm_bias=False)
    weights.linear("mm.1", drawing.n_out, drawing.shape.d)
    weights.linear("mm.2", drawing.n_out, drawing.n_out)
    weights.normal("v.token_embd.img_break", drawing.n_out)


def lightonocr(drawing: Drawing) -> None:
    """Pixtral's transformer, patch merging, two matrices; pictures keep their shape."""
    shape, weights = drawing.shape, drawing.weights
    drawing.key("use_silu", True)
    drawing.key("vision.spatial_merge_size", shape.merge)
    _patches(drawing, bias=False)
    weights.norm("v.pre_ln", shape.d, bias=False)
    _layers(drawing, gated=True, bias=False, norm_bias=False)
    weights.norm("mm.input_norm", shape.d, bias=False)
    weights.matrix("mm.patch_merger.weight", shape.d, shape.d * shape.merge**2)
    weights.linear("mm.1", drawing.n_out, shape.d, bias=False)
    weights.linear("mm.2", drawing.n_out, drawing.n_out, bias=False)


def janus_pro(drawing: Drawing) -> None:
    """SigLIP and two matrices."""
    drawing.key("use_gelu", True)
    _siglip(drawing)
    drawing.weights.linear("mm.0", drawing.n_out, drawing.shape.d)
    drawing.weights.linear("mm.1", drawing.n_out, drawing.n_out)


def kimivl(drawing: Drawing) -> None:
    """MoonViT: learned positions and 2D RoPE, patch merging, norm and two matrices."""
    shape, weights = drawing.shape, drawing.weights
    drawing.key("use_gelu", True)
    drawing.key("vision.projector.scale_factor", shape.merge)
    _siglip(drawing)
    merged = shape.d * shape.merge**2
    weights.norm("mm.input_norm", shape.d)
    weights.linear("mm.1", merged, merged)
    weights.linear("mm.2", drawing.n_out, merged)


def lfm2(drawing: Drawing) -> None:
    """SigLIP 2, pixel unshuffle, norm and two matrices."""
    shape, weights = drawing.shape, drawing.weights
    drawing.key("use_gelu", True)
    drawing.key("vision.projector.scale_factor", shape.merge)
    _siglip(drawing)
    merged = shape.d * shape.merge**2
    weights.norm("mm.input_norm", merged)
    weights.linear("mm.1", drawing.n_out, merged)
    weights.linear("mm.2", drawing.n_out, drawing.n_out)


def gemma3(drawing: Drawing) -> None:
    """SigLIP, average pooling, norm, one matrix."""
    drawing.key("use_gelu", True)
    drawing.key("vision.projector.scale_factor", drawing.shape.merge)
    _siglip(drawing)
    drawing.weights.matrix("mm.input_projection.weight", drawing.shape.d, drawing.n_out)
    drawing.weights.norm("mm.soft_emb_norm", drawing.shape.d, bias=False)


def _two_frame_patches(drawing: Drawing, *, bias: bool) -> None:
    shape, weights = drawing.shape, drawing.weights
    weights.kernel("v.patch_embd.weight", shape.d, 3, shape.patch)
    weights.kernel("v.patch_embd.weight.1", shape.d, 3, shape.patch)
    if bias:
        weights.normal("v.patch_embd.bias", shape.d)


def _qwen_merger(drawing: Drawing) -> None:
    merged = drawing.shape.d * 4
    drawing.weights.linear("mm.0", merged, merged)
    drawing.weights.linear("mm.2", drawing.n_out, merged)


def qwen2vl(drawing: Drawing) -> None:
    """A transformer with M-RoPE over pairs of frames, 2 x 2 merging."""
    _two_frame_patches(drawing, bias=False)
    _layers(drawing)
    drawing.weights.norm("v.post_ln", drawing.shape.d)
    _qwen_merger(drawing)


def qwen25vl(drawing: Drawing) -> None:
    """As Qwen2-VL, with RMS norms, gated layers and attention in windows."""
    drawing.key("use_silu", True)
    drawing.key("vision.n_wa_pattern", 2)
    _two_frame_patches(drawing, bias=False)
    _layers(drawing, gated=True, norm_bias=False)
    drawing.weights.norm("v.post_ln", drawing.shape.d, bias=False)
    _qwen_merger(drawing)


def qwen3vl(drawing: Drawing) -> None:
    """As Qwen2-VL, with learned positions; the first layer's output goes to the language model's
    first layer too (deepstack)."""
    shape, weights = drawing.shape, drawing.weights
    drawing.key("use_gelu", True)
    _two_frame_patches(drawing, bias=True)
    weights.normal("v.position_embd.weight", shape.n_patches, shape.d)
    d = shape.d
    for index in range(shape.n_layer):
        prefix = f"v.blk.{index}"
        weights.linear(f"{prefix}.attn_qkv", 3 * d, d)
        weights.linear(f"{prefix}.attn_out", d, d)
        weights.norm(f"{prefix}.ln1", d)
        weights.norm(f"{prefix}.ln2", d)
        weights.linear(f"{prefix}.ffn_up", shape.n_ff, d)
        weights.linear(f"{prefix}.ffn_down", d, shape.n_ff)
    weights.norm("v.deepstack.0.norm", 4 * d)
    weights.linear("v.deepstack.0.fc1", 4 * d, 4 * d)
    weights.linear("v.deepstack.0.fc2", drawing.n_out, 4 * d)
    weights.norm("v.post_ln", d)
    _qwen_merger(drawing)


def hunyuanvl(drawing: Drawing) -> None:
    """A transformer with learned positions, two convolutions, a matrix, row separators."""
    shape, weights, n_out = drawing.shape, drawing.weights, drawing.n_out
    drawing.key("vision.image_min_pixels", shape.image)
    drawing.key("vision.image_max_pixels", (4 * shape.image) ** 2)
    _patches(drawing, n_positions=shape.n_patches)
    _layers(drawing)
    weights.norm("mm.pre_norm", shape.d, bias=False)
    weights.kernel("mm.0.weight", 2 * shape.d, shape.d, shape.merge)
    weights.normal("mm.0.bias", 2 * shape.d)
    weights.kernel("mm.2.weight", 4 * shape.d, 2 * shape.d, 1)
    weights.normal("mm.2.bias", 4 * shape.d)
    weights.linear("mm.model.fc", n_out, 4 * shape.d)
    weights.norm("mm.post_norm", n_out, bias=False)
    weights.normal("mm.image_begin", n_out)
    weights.normal("mm.image_end", n_out)
    weights.normal("v.image_newline", 4 * shape.d)
