"""Write the reference of a model's encoder self-test: a picture and its embeddings.

Run it where the encoder is known to be right (ONNX Runtime on a PC):

    python -m tools.make_encoder_reference config/models/demo.yaml picture.png [--crop X Y W H]

The picture is brought to the encoder's input size as camera frames are. Use one of the kind that
the model was trained on: random noise hides errors that real pictures show.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import cv2
import numpy as np

from edge_vlm_ros.engines import native_log
from edge_vlm_ros.model_profile import ModelProfile, ProfileError, load_profile
from edge_vlm_ros.vision.encoder import RgbImage
from edge_vlm_ros.vision.errors import VisionError
from edge_vlm_ros.vision.opening import open_untested
from edge_vlm_ros.vision.preprocess import resize_rgb
from edge_vlm_ros.vision.self_test import self_test


def main(arguments: list[str] | None = None) -> int:
    """Make the reference that the profile names, and test the encoder against it."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.make_encoder_reference",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("profile", type=Path, help="model profile (YAML)")
    parser.add_argument("picture", type=Path, help="PNG or JPEG")
    parser.add_argument("--crop", type=int, nargs=4, metavar=("X", "Y", "W", "H"))
    parser.add_argument("--out", type=Path, help=".npz; default: encoder.reference of the profile")
    given = parser.parse_args(arguments)
    try:
        profile = load_profile(given.profile)
        out = _checked_out(given.out or profile.encoder.reference)
        return _make(profile, _picture(given.picture, given.crop), out)
    except (ProfileError, VisionError, OSError, ValueError) as error:
        print(f"make_encoder_reference: {error}", file=sys.stderr)
        return 1


def _checked_out(out: Path | None) -> Path:
    if out is None:
        raise ValueError("the profile names no reference: give --out, and add encoder.reference")
    if out.suffix != ".npz" or out.is_dir():
        raise ValueError(f"{out} is no name of an .npz file")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {out.parent}; make it first")
    return out


def _picture(path: Path, crop: list[int] | None) -> RgbImage:
    bgr = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if bgr is None:
        raise ValueError(f"{path} is not a picture that OpenCV reads")
    if crop:
        x, y, width, height = crop
        if min(x, y) < 0 or min(width, height) < 1:
            raise ValueError(f"--crop {x} {y} {width} {height} is no part of a picture")
        if y + height > bgr.shape[0] or x + width > bgr.shape[1]:
            raise ValueError(
                f"--crop {x} {y} {width} {height} is not within the picture, which is "
                f"{bgr.shape[1]} x {bgr.shape[0]}"
            )
        bgr = bgr[y : y + height, x : x + width]
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)


def _make(profile: ModelProfile, picture: RgbImage, out: Path) -> int:
    shape = profile.encoder
    rgb = resize_rgb(picture, shape.size, shape.resize, shape.pad_value)
    native_log.install()
    encoder = open_untested(shape, language=profile.language.file)
    np.savez_compressed(out, rgb=rgb, embeddings=encoder.encode(rgb))
    result = self_test(encoder, out)
    print(f"{out}: {out.stat().st_size} bytes; {result.message}")
    return 0 if result.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
