"""The demo encoder for Rockchip's NPU, in the vendor's simulator: run by `make test-rknn`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from rknn_demo import N_ITEMS, Demo, count_right

from edge_vlm_ros.vision.self_test import MIN_COSINE
from tools.convert_encoder.rknn_conversion import convert_rknn, onnx_backend
from tools.setup.progress import Failed

pytestmark = pytest.mark.skipif(
    "EDGE_VLM_ROS_TEST_RKNN" not in os.environ,
    reason="needs Rockchip's rknn-toolkit2 (650 MB): run `make test-rknn`",
)


def check(kind: str, demo: Demo, say: Callable[[str], None]) -> None:
    comparisons = demo.conversion.comparisons
    right = count_right(demo)
    say(
        f"rknn simulator, {kind}: {len(comparisons)} pictures, cosine at least "
        f"{demo.conversion.worst:.6f}, of a token {min(c.worst_token for c in comparisons):.6f}; "
        f"{right} of {N_ITEMS} answers right; {demo.file.stat().st_size / 1e6:.1f} MB"
    )
    assert demo.conversion.worst >= MIN_COSINE
    assert right >= N_ITEMS - 1


def test_float16(demo: Demo, say: Callable[[str], None]) -> None:
    check("float16", demo, say)


def test_int8(demo_int8: Demo, say: Callable[[str], None]) -> None:
    check("int8", demo_int8, say)
    assert demo_int8.conversion.worst < 0.99999  # it is another model


def test_a_model_that_cannot_be_converted_says_why(demo: Demo, tmp_path: Path) -> None:
    backend = onnx_backend(demo.profile)
    model = onnx.load(backend.file)
    model.opset_import[0].version = 20
    onnx.save(model, tmp_path / "opset20.onnx")
    newer = backend.model_copy(update={"file": tmp_path / "opset20.onnx"})
    with pytest.raises(Failed, match="(?s)need <= 19.*up to opset 19"):
        convert_rknn(demo.profile, newer, tmp_path / "out.rknn", np.array(demo.pictures[:1]))
    assert not (tmp_path / "out.rknn").exists()
