"""What all encoders share that run on ONNX Runtime."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .errors import EncoderError


def import_onnxruntime() -> ModuleType:
    """The library, without its telemetry. Raises EncoderError."""
    # Read by the library when it is imported: 1.31 and later would send usage data.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise EncoderError(
            "onnxruntime is not installed; install the Python requirements of edge_vlm_ros"
        ) from error


def check_declared(
    tensors: Sequence[Any], name: str, expected: tuple[int, ...], field: str
) -> None:
    """Compare a tensor that the model declares with the profile; symbolic sizes match anything.

    Args:
        tensors: ``get_inputs()`` or ``get_outputs()`` of a session.
        name: of the tensor, from the backend in the profile.
        expected: its shape, from the profile.
        field: ``input`` or ``output``.

    Raises:
        EncoderError: no such tensor, another shape, not float32, or a second input.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    if name not in by_name:
        raise EncoderError(
            f"the model has no {field} named {name!r}, only {sorted(by_name)}; "
            f"correct {field} of the backend in the model profile"
        )
    if field == "input" and len(tensors) != 1:
        raise EncoderError(
            f"the model has {len(tensors)} inputs {sorted(by_name)}; only encoders with the "
            "picture as their one input can be used"
        )
    tensor = by_name[name]
    if tensor.type != "tensor(float)":
        raise EncoderError(
            f"the model's {field} {name!r} is {tensor.type}, but a float32 tensor is needed; "
            "export the model with float32 input and output"
        )
    declared = tuple(tensor.shape)
    fits = len(declared) == len(expected) and all(
        not isinstance(have, int) or have == want
        for have, want in zip(declared, expected, strict=False)
    )
    if not fits:
        hint = "size or layout" if field == "input" else "n_tokens or n_embd"
        raise EncoderError(
            f"the model's {field} {name!r} has the shape {list(declared)}, but the model profile "
            f"says {list(expected)}; correct encoder.{hint}"
        )
