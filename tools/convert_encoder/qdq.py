"""ONNX encoder to a quantised (QDQ) one, for the NPUs of Qualcomm's processors.

    python -m tools.convert_encoder qdq config/models/demo.yaml vision.w8a16.onnx

Weights become 8-bit, activations 16-bit, or 8-bit with --bits w8a8: faster, and less exact. The
ranges come from pictures (--calibration): some dozens that the robot's cameras took. For the demo
model they are drawn. Some are held back, and what the quantised model makes of them is compared
with the ONNX file. With --compiled the model is compiled for the NPU as well, and runs there on a
board, and in the plugin's emulator on a PC.

ONNX Runtime with Qualcomm's plugin comes into an environment of its own (once, 600 MB).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_vlm_ros.demo.questions import make_item
from edge_vlm_ros.demo.render import SceneRenderer
from edge_vlm_ros.model_profile import (
    EncoderProfile,
    ModelProfile,
    OnnxBackend,
    ProfileError,
    load_profile,
    sha256_file,
)
from edge_vlm_ros.vision.encoder import RgbImage
from edge_vlm_ros.vision.preprocess import resize_rgb
from edge_vlm_ros.vision.self_test import MIN_COSINE
from tools.convert_encoder.pictures import Comparison, compare, load_pictures
from tools.setup import npu_qnn, npu_venv
from tools.setup.progress import Failed, exit_code, note, run
from tools.setup.venv import ROOT

BITS = {"w8a16": 16, "w8a8": 8}
"""Of the activations."""

_PROCESS = Path(__file__).resolve().parent / "qdq_process.py"
_MAX_PICTURES = 200
_HELD_BACK = 4  # every fourth picture
_DEMO_PICTURES = 64
_DEMO_SEED = 7_000_000  # scenes that neither training nor the held-out items use


@dataclass(frozen=True)
class HtpCompilation:
    """Compile for this NPU, to ``file``, and encode ``pictures`` pictures there (0 or more): the
    emulator takes from a second for each to minutes."""

    file: Path
    soc_model: int = 35
    htp_arch: int = 68
    pictures: int = 1


@dataclass(frozen=True)
class QdqConversion:
    """Against the ONNX file, on each picture: the quantised model on the CPU, and on the NPU or
    its emulator as many pictures as were asked for."""

    on_cpu: tuple[Comparison, ...]
    on_npu: tuple[Comparison, ...]

    @property
    def worst(self) -> float:
        """The lowest cosine of a picture."""
        return min(c.cosine for c in (*self.on_cpu, *self.on_npu))


def convert_qdq(
    profile: Path,
    out: Path,
    calibration: RgbImage,
    pictures: RgbImage,
    *,
    bits: str = "w8a16",
    compilation: HtpCompilation | None = None,
) -> QdqConversion:
    """Write ``out`` and compare it with the profile's first ONNX backend.

    Args:
        profile: a model profile (YAML).
        out: the QDQ file; the converter's log is kept beside it (.log).
        calibration: uint8 [n, height, width, 3] of the encoder's size, for the ranges.
        pictures: uint8 [m, height, width, 3], others, to compare on.
        bits: ``w8a16`` or ``w8a8``.
        compilation: compile for the NPU, too.

    Raises:
        Failed: a file that cannot be converted, or no environment to do it in.
        ProfileError: an unusable profile.
    """
    backend = _onnx_backend(load_profile(profile).encoder)
    python = npu_qnn.ensure()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="edge_vlm_ros_qdq_") as name:
        scratch = Path(name)
        np.save(scratch / "calibration.npy", calibration)
        np.save(scratch / "pictures.npy", pictures)
        job: dict[str, Any] = {
            "source": str(backend.file),
            "input": backend.input,
            "output": backend.output,
            "profile": str(profile.absolute()),
            "out": str(out.absolute()),
            "bits": BITS[bits],
        }
        for array in ("calibration", "pictures", "float_embeddings", "embeddings"):
            job[array] = str(scratch / f"{array}.npy")
        job |= _compilation_job(compilation, scratch)
        (scratch / "job.json").write_text(json.dumps(job))
        run(
            [python, _PROCESS, scratch / "job.json"],
            log=out.with_suffix(".log"),
            progress=r"(?<=^converter: ).*",
            env=npu_venv.environment() | {"PYTHONPATH": str(ROOT)},
        )
        expected = np.load(job["float_embeddings"])
        on_cpu = np.load(job["embeddings"])
        on_npu = np.load(job["npu_embeddings"]) if compilation is not None else ()
    return QdqConversion(
        tuple(map(compare, on_cpu, expected)), tuple(map(compare, on_npu, expected))
    )


def _compilation_job(compilation: HtpCompilation | None, scratch: Path) -> dict[str, Any]:
    if compilation is None:
        return {"compiled": None}
    return {
        "compiled": str(compilation.file.absolute()),
        "soc_model": compilation.soc_model,
        "htp_arch": compilation.htp_arch,
        "npu_pictures": compilation.pictures,
        "npu_embeddings": str(scratch / "npu_embeddings.npy"),
    }


def demo_pictures(profile: EncoderProfile, n: int = _DEMO_PICTURES) -> RgbImage:
    """One frame of each of ``n`` scenes of the demo world: uint8 [n, height, width, 3]."""
    frames = []
    for seed in range(_DEMO_SEED, _DEMO_SEED + n):
        scene = make_item(seed, 1 + seed % 4, 0).scene
        frame = SceneRenderer(scene, seed).frame(scene.n_frames - 1)
        frames.append(resize_rgb(frame, profile.size, profile.resize, profile.pad_value))
    return np.stack(frames)


def split(pictures: RgbImage) -> tuple[RgbImage, RgbImage]:
    """Pictures for the ranges, and those held back to compare on. Raises Failed."""
    if len(pictures) < _HELD_BACK:
        raise Failed(
            f"{len(pictures)} pictures are too few: some dozens are needed, of which every "
            f"{_HELD_BACK}th is held back to compare on"
        )
    held_back = np.arange(len(pictures)) % _HELD_BACK == _HELD_BACK - 1
    return pictures[~held_back], pictures[held_back]


def report(conversion: QdqConversion) -> str:
    """Lines about how near the quantised model comes to the ONNX file."""
    lines = [f"{'quantised':<12}{'pictures':>9}{'worst':>11}{'mean':>11}{'worst token':>13}"]
    for where, found in (("on the CPU", conversion.on_cpu), ("on the NPU", conversion.on_npu)):
        if found:
            cosines = [comparison.cosine for comparison in found]
            token = min(comparison.worst_token for comparison in found)
            lines.append(
                f"{where:<12}{len(found):>9}{min(cosines):>11.6f}{np.mean(cosines):>11.6f}"
                f"{token:>13.6f}"
            )
    return "\n".join(lines)


def _onnx_backend(profile: EncoderProfile) -> OnnxBackend:
    backend = next((b for b in profile.backends if isinstance(b, OnnxBackend)), None)
    if backend is None:
        raise Failed("the profile has no backend of type onnx to convert; add it under encoder")
    if backend.layout != "nchw":
        raise Failed("only encoders with NCHW input are converted; export the model so")
    if not backend.file.is_file():
        raise Failed(f"there is no encoder file {backend.file}; put it there")
    return backend


def _pictures(arguments: argparse.Namespace, model: ModelProfile) -> tuple[RgbImage, RgbImage]:
    profile = model.encoder
    if arguments.calibration is not None:
        pictures = load_pictures(arguments.calibration, profile, _MAX_PICTURES)
    elif model.name == "demo":
        pictures = demo_pictures(profile)
    else:
        raise Failed(
            "give --calibration with a folder of some dozens of pictures from the robot's cameras"
        )
    if arguments.pictures is None:
        return split(pictures)
    return pictures, load_pictures(arguments.pictures, profile, _MAX_PICTURES)


def _convert(arguments: argparse.Namespace) -> None:
    try:
        model = load_profile(arguments.profile)
    except ProfileError as error:
        raise Failed(str(error)) from error
    calibration, pictures = _pictures(arguments, model)
    compilation = None
    if arguments.compiled is not None:
        compilation = HtpCompilation(
            arguments.compiled, arguments.soc_model, arguments.htp_arch, arguments.npu_pictures
        )
    out: Path = arguments.out
    note(f"{len(calibration)} pictures for the ranges, {len(pictures)} to compare on")
    # Under its own name only when it is good: a file that is there gets used.
    made = out.with_suffix(f".unchecked{out.suffix}")
    conversion = convert_qdq(
        arguments.profile, made, calibration, pictures, bits=arguments.bits, compilation=compilation
    )
    note(report(conversion))
    if not conversion.worst >= MIN_COSINE:
        raise Failed(
            f"the worst cosine is {conversion.worst:.4f}, below {MIN_COSINE}: {made} is not to be "
            "used; take w8a16, or more and more varied pictures"
        )
    os.replace(made, out)
    made.with_suffix(".log").unlink()
    used = out if compilation is None else compilation.file
    backend = _onnx_backend(model.encoder)
    note(f"{used}: {used.stat().st_size / 1e6:.1f} MB. In the profile, before the other backends:")
    note(f"    - type: qnn\n      file: {used.name}\n      sha256: {sha256_file(used)}")
    note(f"      input: {backend.input}\n      output: {backend.output}")
    note(f"      soc_model: {arguments.soc_model}\n      htp_arch: {arguments.htp_arch}")


def main(argv: Sequence[str]) -> int:
    """`python -m tools.convert_encoder qdq`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.convert_encoder qdq",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("profile", type=Path, help="model profile (YAML)")
    parser.add_argument("out", type=Path, help="the QDQ file to write (.onnx)")
    parser.add_argument("--bits", choices=tuple(BITS), default="w8a16", help="weights, activations")
    parser.add_argument("--calibration", type=Path, help="folder of pictures for the ranges")
    parser.add_argument(
        "--pictures", type=Path, help="folder to compare on (else every fourth of the others)"
    )
    parser.add_argument("--compiled", type=Path, help="compile for the NPU as well (.onnx)")
    parser.add_argument("--soc-model", type=int, default=35, help="35 is the QCS6490")
    parser.add_argument("--htp-arch", type=int, default=68, help="68 is the QCS6490's")
    parser.add_argument(
        "--npu-pictures", type=int, default=1, help="to compare on the NPU or its emulator"
    )
    arguments = parser.parse_args(argv)
    return exit_code(lambda: _convert(arguments), "convert_encoder qdq")
