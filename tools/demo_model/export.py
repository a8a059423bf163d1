"""Turns a training run into the files that a robot loads, and checks the encoder.

    python -m tools.demo_model.export --run RUN --out DIR [--types Q8_0,F16,Q4_0]

RUN: folder of tools.demo_model.train, or models/demo. Writes DIR/vision.onnx and DIR/lm.TYPE.gguf.
`python -m tools.demo_accuracy` measures the answers of the files in models/demo.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from tools.demo_model.checkpoint import load_run
from tools.demo_model.gguf_export import export_gguf
from tools.demo_model.onnx_export import export_onnx
from tools.demo_model.vision_model import VisionEncoder

MAX_DIFFERENCE = 0.02  # of an embedding (standard deviation about 1), float16 against float32


def check_onnx(encoder: VisionEncoder, path: Path) -> float:
    """Largest difference of the exported encoder on a random picture.

    Raises RuntimeError when it is above MAX_DIFFERENCE.
    """
    size = encoder.config.size
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = encoder(image).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    difference = float(np.abs(session.run(None, {"image": image.numpy()})[0] - expected).max())
    if difference > MAX_DIFFERENCE:
        raise RuntimeError(f"{path} differs from the torch encoder by {difference:.3g}")
    return difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--run", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--types", default="Q8_0", help="comma-separated: Q8_0, F16, Q4_0")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = load_run(args.run)
    weights = {k: v.numpy() for k, v in model.language.state_dict().items()}
    for file_type in args.types.split(","):
        path = args.out / f"lm.{file_type}.gguf"
        export_gguf(path, model.language.config, weights, model.tokenizer, file_type)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    path = args.out / "vision.onnx"
    export_onnx(model.encoder, path)
    difference = check_onnx(model.encoder, path)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
