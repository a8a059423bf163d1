#!/usr/bin/env python3
"""Write the reference of a model's encoder self-test: a picture and its embeddings.

Run it where the encoder is known to be right (ONNX Runtime on a PC):

    python tools/make_encoder_reference.py config/models/demo.yaml picture.png [--crop X Y W H]

The picture is brought to the encoder's input size as camera frames are. Use one of the kind that
the model was trained on: random noise hides errors that real pictures show.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from edge_vlm_ros.engines import native_log  # noqa: E402
from edge_vlm_ros.model_profile import load_profile  # noqa: E402
from edge_vlm_ros.vision.opening import open_untested  # noqa: E402
from edge_vlm_ros.vision.preprocess import resize_rgb  # noqa: E402
from edge_vlm_ros.vision.self_test import self_test  # noqa: E402


def main() -> int:
    """Make the reference that the profile names, and test the encoder against it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("profile", type=Path, help="model profile (YAML)")
    parser.add_argument("picture", type=Path, help="PNG or JPEG")
    parser.add_argument("--crop", type=int, nargs=4, metavar=("X", "Y", "W", "H"))
    parser.add_argument("--out", type=Path, help="default: encoder.reference of the profile")
    arguments = parser.parse_args()

    profile = load_profile(arguments.profile)
    out = arguments.out or profile.encoder.reference
    if out is None:
        parser.error("the profile names no reference: give --out, and add encoder.reference to it")
    bgr = cv2.imread(str(arguments.picture), cv2.IMREAD_COLOR)
    if bgr is None:
        parser.error(f"{arguments.picture} is not a picture that OpenCV reads")
    if arguments.crop:
        x, y, width, height = arguments.crop
        bgr = bgr[y : y + height, x : x + width]
    rgb = resize_rgb(
        cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB),
        profile.encoder.size,
        profile.encoder.resize,
        profile.encoder.pad_value,
    )
    native_log.install()
    encoder = open_untested(profile.encoder, language=profile.language.file)
    np.savez_compressed(out, rgb=rgb, embeddings=encoder.encode(rgb))
    result = self_test(encoder, out)
    print(f"{out}: {out.stat().st_size} bytes; {result.message}")
    return 0 if result.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
