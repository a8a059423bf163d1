"""Writes the vision encoder as ONNX: weights stored as float16, arithmetic in float32."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from tools.demo_model.vision_model import Block, VisionEncoder

_SMALL = 1024  # tensors with fewer elements stay float32


def export_onnx(encoder: VisionEncoder, path: Path) -> None:
    """`image` [1, 3, size, size] float32 RGB in [0, 1] -> `embeds` [1, tokens, d_lm] float32."""
    encoder = copy.deepcopy(encoder).eval().float().cpu()
    for block in encoder.blocks:
        assert isinstance(block, Block)
        block.plain_attention = True
    size = encoder.config.size
    torch.onnx.export(
        encoder,
        (torch.rand(1, 3, size, size),),
        str(path),
        dynamo=False,
        do_constant_folding=True,
        input_names=["image"],
        output_names=["embeds"],
        opset_version=17,
    )
    model = onnx.load(path)
    _store_as_float16(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _store_as_float16(model: onnx.ModelProto) -> None:
    """Halve the file: a Cast in front of every large weight, which a runtime folds at load."""
    casts, stored = [], []
    for initializer in model.graph.initializer:
        values = numpy_helper.to_array(initializer)
        if values.dtype != np.float32 or values.size < _SMALL:
            stored.append(initializer)
            continue
        name = initializer.name + "__h"
        stored.append(numpy_helper.from_array(values.astype(np.float16), name))
        casts.append(helper.make_node("Cast", [name], [initializer.name], to=TensorProto.FLOAT))
    nodes = list(model.graph.node)
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(stored)
    model.graph.node.extend(casts + nodes)
