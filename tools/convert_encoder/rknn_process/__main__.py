"""Converts and simulates one encoder; run by the Python of Rockchip's toolkit, see rknn_conversion.

A process of its own, because the toolkit may abort. Its argument is a JSON file: onnx, out, target,
mean and std (of pixels 0..255), dataset (text file with pictures for quantisation, or null),
pictures (npy, uint8 [n, height, width, 3]) and embeddings (npy to be written).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch_stub  # type: ignore[import-not-found]  # beside this file

MARK = "converter:"


class ToolkitError(RuntimeError):
    """A call of the toolkit that says it failed."""


def _say(text: str) -> None:
    print(f"{MARK} {text}", flush=True)


def _check(call: str, code: Any) -> None:
    """Its calls raise, or return -1, or both."""
    if code != 0:
        raise ToolkitError(f"{call} failed ({code}); the toolkit says why above")


def _convert(rknn: Any, job: dict[str, Any]) -> None:
    _say("reading the ONNX file")
    settings = {"mean_values": [job["mean"]], "std_values": [job["std"]]}
    _check("config", rknn.config(target_platform=job["target"], **settings))
    _check("load_onnx", rknn.load_onnx(job["onnx"]))
    _say("building" + (" and quantising" if job["dataset"] else ""))
    started = time.monotonic()
    _check("build", rknn.build(do_quantization=bool(job["dataset"]), dataset=job["dataset"]))
    _say(f"built in {time.monotonic() - started:.1f} s")
    _check("export_rknn", rknn.export_rknn(job["out"]))


def _simulate(rknn: Any, job: dict[str, Any]) -> None:
    # It simulates only what it has built itself, not a file.
    _check("init_runtime", rknn.init_runtime())
    pictures = np.load(job["pictures"])
    found = []
    started = time.monotonic()
    for number, picture in enumerate(pictures, start=1):
        outputs = rknn.inference([picture[np.newaxis]], data_format=["nhwc"])
        if outputs is None or len(outputs) != 1:
            raise ToolkitError("the simulator gave no output, or more than one")
        found.append(outputs[0][0])
        _say(f"simulated {number} of {len(pictures)}")
    _say(f"simulated {len(pictures)} pictures in {time.monotonic() - started:.1f} s")
    np.save(job["embeddings"], np.asarray(found, np.float32))


def main() -> None:
    """Do the job that the argument names."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        job = json.load(stream)
    _say("starting the toolkit")
    torch_stub.install()
    from rknn.api import RKNN

    rknn = RKNN(verbose=False)
    try:
        _convert(rknn, job)
        _simulate(rknn, job)
    finally:
        rknn.release()


if __name__ == "__main__":
    main()
