"""Runs our encoder with the real RKNNLite; in aarch64 Python, see rknn_board.

The argument is a JSON file; its keys are those of ``main``. The last line printed is the report.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edge_vlm_ros.model_profile import EncoderProfile, RknnBackend
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.opening import open_encoder
from edge_vlm_ros.vision.rknn_encoder import RknnEncoder


@contextmanager
def failing(call: str, code: int) -> Iterator[None]:
    os.environ["STAND_IN_FAIL"] = f"{call}={code}"
    try:
        yield
    finally:
        del os.environ["STAND_IN_FAIL"]


def told(action: Any) -> str:
    """The error of an action; "" if there is none."""
    try:
        action()
    except EncoderError as error:
        return str(error)
    return ""


def start_errors(profile: EncoderProfile, codes: list[tuple[str, int]]) -> dict[str, str]:
    found = {}
    for call, code in codes:
        with failing(call, code):
            found[f"{call} {code}"] = told(lambda: RknnEncoder(profile, only(profile), core=1))
    return found


def frame_errors(
    encoder: RknnEncoder, frames: Any, codes: list[tuple[str, int]], watched: bool
) -> dict[str, str]:
    """Of the second frame, after the first went well; the same frame must go well afterwards."""
    found = {}
    if not watched:
        del encoder._lite.rknn_runtime.run
        encoder._watch.code = 0
    for call, code in codes:
        encoder.encode(frames[0])
        with failing(call, code):
            found[f"{call} {code}"] = told(lambda: encoder.encode(frames[1]))
        encoder.encode(frames[1])
    return found


def only(profile: EncoderProfile) -> RknnBackend:
    (backend,) = profile.backends
    assert isinstance(backend, RknnBackend)
    return backend


def main(job: dict[str, Any]) -> dict[str, Any]:
    profile = EncoderProfile.model_validate(job["profile"], context={"folder": Path("/")})
    os.environ.update(job.get("environment", {}))
    report: dict[str, Any] = {"error": told(lambda: open_encoder(profile).close())}
    if not report["error"]:
        opened = open_encoder(profile)
        frames = np.load(job["frames"])
        np.save(job["embeddings"], [opened.encoders[0].encode(frame) for frame in frames])
        report |= {
            "self_test": opened.self_test.message,
            "cosine": opened.self_test.cosine,
            "backends": [encoder.backend for encoder in opened.encoders],
            "identities": len({encoder.identity for encoder in opened.encoders}),
        }
        opened.close()
        report["start"] = start_errors(profile, job["start_codes"])
        for name, watched in (("frame", True), ("frame_unwatched", False)):
            encoder = RknnEncoder(profile, only(profile))
            codes = job["frame_codes"]
            report[name] = frame_errors(encoder, frames, codes, watched)
            encoder.close()
    report["levels"] = [logging.getLevelName("DEBUG"), logging.getLevelName(logging.ERROR)]
    return report


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as stream:
        print(json.dumps(main(json.load(stream))))
