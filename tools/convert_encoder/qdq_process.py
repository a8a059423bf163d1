"""Quantises one encoder; run by the Python of tools/setup/npu_qnn, see qdq.

Its argument is a JSON file: source (ONNX), out, profile (YAML), bits (of activations: 8 or 16),
calibration and pictures (npy, uint8 [n, height, width, 3]), float_embeddings and embeddings (npy
to be written, of pictures), and compiled: null, or a file to be written, with soc_model, htp_arch
and npu_embeddings (npy, of the first npu_pictures of pictures).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import (
    get_qnn_qdq_config,
    qnn_preprocess_model,
)

from edge_vlm_ros.model_profile import QnnBackend, load_profile
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.pixels import PixelTable
from edge_vlm_ros.vision.qnn_encoder import QnnEncoder
from edge_vlm_ros.vision.qnn_runtime import HtpTarget, QnnRuntime

MARK = "converter:"


def _say(text: str) -> None:
    print(f"{MARK} {text}", flush=True)


class _Calibration(CalibrationDataReader):
    """Gives the pictures to the quantiser one by one."""

    def __init__(self, name: str, inputs: Iterable[npt.NDArray[np.float32]], n: int) -> None:
        self._name, self._inputs, self._n = name, enumerate(inputs, start=1), n

    def get_next(self) -> dict[str, npt.NDArray[np.float32]] | None:
        number, value = next(self._inputs, (0, None))
        if value is None:
            return None
        _say(f"looking at picture {number} of {self._n}")
        return {self._name: value}


def _fold(source: str, out: Path) -> None:
    """Compute what does not depend on the picture: weights stored as float16, shapes."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _quantise(job: dict[str, Any], pixels: PixelTable, scratch: Path) -> None:
    _say("reading the ONNX file")
    folded, prepared = scratch / "folded.onnx", scratch / "prepared.onnx"
    _fold(job["source"], folded)
    model = prepared if qnn_preprocess_model(folded, prepared) else folded
    pictures = np.load(job["calibration"], mmap_mode="r")
    inputs: Iterator[npt.NDArray[np.float32]] = map(pixels.channels_first, pictures)
    config = get_qnn_qdq_config(
        model,
        _Calibration(job["input"], inputs, len(pictures)),
        activation_type=QuantType.QUInt16 if job["bits"] == 16 else QuantType.QUInt8,
        # What HTP v68 has: unsigned weights, one scale for a tensor.
        weight_type=QuantType.QUInt8,
        per_channel=False,
    )
    quantize(model, job["out"], config)


def _run(job: dict[str, Any], model: str, pixels: PixelTable, save_as: str) -> None:
    """Embeddings of the pictures on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found = []
    for number, picture in enumerate(np.load(job["pictures"]), start=1):
        feed = {job["input"]: pixels.channels_first(picture)}
        found.append(session.run([job["output"]], feed)[0][0])
        _say(f"encoded {number} pictures with {Path(model).name}")
    np.save(save_as, np.asarray(found, np.float32))


def _compile(job: dict[str, Any]) -> None:
    """Compile for the NPU, and encode some pictures on it or on its emulator."""
    profile = load_profile(job["profile"]).encoder
    target = HtpTarget(job["soc_model"], job["htp_arch"])
    compiled = Path(job["compiled"])
    compiled.unlink(missing_ok=True)
    _say("compiling for the NPU")
    QnnRuntime().open(Path(job["out"]), target, compiled=compiled)
    backend = QnnBackend(
        type="qnn",
        file=compiled,
        input=job["input"],
        output=job["output"],
        soc_model=target.soc_model,
        htp_arch=target.htp_arch,
    )
    encoder = QnnEncoder(profile, backend)
    found = []
    for number, picture in enumerate(np.load(job["pictures"])[: job["npu_pictures"]], start=1):
        started = time.monotonic()
        found.append(encoder.encode(picture))
        _say(f"encoded {number} pictures on {encoder.backend}: {time.monotonic() - started:.1f} s")
    np.save(job["npu_embeddings"], np.asarray(found, np.float32))


def main() -> None:
    """Do the job that the argument names."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        job = json.load(stream)
    pixels = PixelTable(load_profile(job["profile"]).encoder)
    with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_qdq_") as scratch:
        _quantise(job, pixels, Path(scratch))
    _run(job, job["source"], pixels, job["float_embeddings"])
    _run(job, job["out"], pixels, job["embeddings"])
    if job["compiled"] is not None:
        try:
            _compile(job)
        except EncoderError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
