"""ONNX encoder to .rknn, for the NPUs of Rockchip SoCs.

    python -m tools.convert_encoder rknn config/models/demo.yaml vision.rknn

Rockchip's toolkit comes into an environment of its own (once, 650 MB). It computes in float16;
with --calibration, a folder of camera pictures, in int8: half the size, and less exact. What the
toolkit's simulator computes is compared with the ONNX file. A simulator is not a board: the encoder
tests itself again where it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from edge_vlm_ros.model_profile import (
    EncoderProfile,
    OnnxBackend,
    ProfileError,
    load_profile,
    sha256_file,
)
from edge_vlm_ros.vision.encoder import Embeddings, RgbImage
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder
from edge_vlm_ros.vision.self_test import MIN_COSINE
from tools.convert_encoder.pictures import (
    Comparison,
    compare,
    load_pictures,
    reference_picture,
)
from tools.setup import npu_rknn
from tools.setup.progress import Failed, exit_code, note, run

TARGETS = ("rk3588", "rk3576", "rk3568", "rk3566", "rk3562")
_PROCESS = Path(__file__).resolve().parent / "rknn_process"
_MAX_PICTURES = 200


@dataclass(frozen=True)
class Conversion:
    """``simulated``: float32 [n_tokens, n_embd] of each picture, by the toolkit's simulator."""

    simulated: tuple[Embeddings, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def worst(self) -> float:
        """The lowest cosine of a picture."""
        return min(comparison.cosine for comparison in self.comparisons)


def convert_rknn(
    profile: EncoderProfile,
    backend: OnnxBackend,
    out: Path,
    pictures: RgbImage,
    *,
    target: str = "rk3588",
    calibration: RgbImage | None = None,
) -> Conversion:
    """Write ``out`` and compare it on pictures.

    Args:
        profile: the encoder part of a model profile.
        backend: its ONNX file, with layout nchw.
        out: the .rknn file; the toolkit's log is kept beside it (.log).
        pictures: uint8 [n, height, width, 3], n >= 1, to simulate.
        target: the SoC.
        calibration: uint8 [n, height, width, 3] to quantise with; None keeps float16.

    Raises:
        Failed: a file that the toolkit cannot convert, or no toolkit.
        EncoderError: an ONNX file that is not as the profile says.
    """
    if backend.layout != "nchw":
        raise Failed("the toolkit converts encoders with NCHW input only; export the model so")
    expected = _onnx_embeddings(profile, backend, pictures)
    python = npu_rknn.ensure()
    log = out.with_suffix(".log")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_rknn_") as name:
        scratch = Path(name)
        np.save(scratch / "pictures.npy", pictures)
        job = {
            "onnx": str(backend.file),
            "out": str(out.absolute()),
            "target": target,
            # The profile's (pixel * scale - mean) / std, in the toolkit's (pixel - mean) / std.
            "mean": [mean / profile.scale for mean in profile.mean],
            "std": [std / profile.scale for std in profile.std],
            "dataset": None if calibration is None else _write_dataset(calibration, scratch),
            "pictures": str(scratch / "pictures.npy"),
            "embeddings": str(scratch / "embeddings.npy"),
        }
        (scratch / "job.json").write_text(json.dumps(job))
        _run(python, scratch, log)
        simulated = np.load(scratch / "embeddings.npy")
    comparisons = tuple(map(compare, simulated, expected))
    return Conversion(tuple(simulated), comparisons)


def _run(python: Path, scratch: Path, log: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        run(
            [python, _PROCESS, scratch / "job.json"],
            log=log,
            progress=r"(?<=^converter: ).*",
            env=environment,
            cwd=scratch,  # the toolkit leaves files behind
        )
    except Failed as failure:
        raise Failed(
            f"{failure}\nThe toolkit converts ONNX up to opset 19 with fixed shapes and float32 "
            "tensors; what it aborts on must be exported differently"
        ) from failure


def _onnx_embeddings(
    profile: EncoderProfile, backend: OnnxBackend, pictures: RgbImage
) -> list[Embeddings]:
    encoder = OnnxEncoder(profile, backend, threads=len(os.sched_getaffinity(0)))
    try:
        return [encoder.encode(picture) for picture in pictures]
    finally:
        encoder.close()


def _write_dataset(calibration: RgbImage, scratch: Path) -> str:
    """Pictures as PNG files, and the list of them that the toolkit reads."""
    names = [f"{number}.png" for number in range(len(calibration))]
    for name, rgb in zip(names, calibration, strict=True):
        cv2.imwrite(str(scratch / name), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
    (scratch / "dataset.txt").write_text("\n".join(names) + "\n")
    return str(scratch / "dataset.txt")


def onnx_backend(profile: EncoderProfile) -> OnnxBackend:
    """The profile's first ONNX backend. Raises Failed."""
    for backend in profile.backends:
        if isinstance(backend, OnnxBackend):
            return backend
    raise Failed("the profile has no backend of type onnx to convert; add it under encoder")


def report(conversion: Conversion) -> str:
    """Lines about how near the simulator comes to the ONNX file."""
    lines = [f"{'picture':<9}{'cosine':>10}{'worst token':>13}{'largest error':>15}"]
    for number, c in enumerate(conversion.comparisons):
        lines.append(f"{number:<9}{c.cosine:>10.6f}{c.worst_token:>13.6f}{c.max_abs_error:>15.4g}")
    return "\n".join(lines)


def _convert(arguments: argparse.Namespace) -> None:
    try:
        profile = load_profile(arguments.profile).encoder
    except ProfileError as error:
        raise Failed(str(error)) from error
    backend = onnx_backend(profile)
    calibration = None
    if arguments.calibration:
        calibration = load_pictures(arguments.calibration, profile, _MAX_PICTURES)
        note(f"{len(calibration)} pictures for quantisation")
    folder = arguments.pictures
    pictures = load_pictures(folder, profile, 16) if folder else reference_picture(profile)
    # Under its own name only when it is good: a file that is there gets used.
    made = arguments.out.with_suffix(".unchecked.rknn")
    try:
        conversion = convert_rknn(
            profile, backend, made, pictures, target=arguments.target, calibration=calibration
        )
    except EncoderError as error:
        raise Failed(str(error)) from error
    note(report(conversion))
    if not conversion.worst >= MIN_COSINE:
        raise Failed(
            f"the worst cosine is {conversion.worst:.4f}, below {MIN_COSINE}: {made} is not to be "
            "used; convert without --calibration, or with more and more varied pictures"
        )
    os.replace(made, arguments.out)
    made.with_suffix(".log").unlink()
    note(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB. In the profile:")
    note(f"    - type: rknn\n      file: {arguments.out.name}")
    note(f"      sha256: {sha256_file(arguments.out)}")


def main(argv: Sequence[str]) -> int:
    """`python -m tools.convert_encoder rknn`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.convert_encoder rknn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("profile", type=Path, help="model profile (YAML)")
    parser.add_argument("out", type=Path, help="the .rknn file to write")
    parser.add_argument("--target", choices=TARGETS, default="rk3588", help="the SoC")
    parser.add_argument("--calibration", type=Path, help="folder of pictures; makes an int8 model")
    parser.add_argument("--pictures", type=Path, help="folder to compare on (else the reference)")
    arguments = parser.parse_args(argv)
    return exit_code(lambda: _convert(arguments), "convert_encoder rknn")
