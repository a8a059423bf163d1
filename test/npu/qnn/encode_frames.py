"""Opens a profile's encoder and encodes frames, in the Python that has onnxruntime-qnn.

    python encode_frames.py PROFILE FRAMES.npy OUT.npz

FRAMES: uint8 [n, height, width, 3]. OUT gets `embeddings`, float32 [n, n_tokens, n_embd], and
`facts`, a JSON text.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from edge_vlm_ros.model_profile import load_profile
from edge_vlm_ros.vision.opening import open_encoder


def main() -> None:
    profile, frames, out = sys.argv[1:]
    started = time.monotonic()
    opened = open_encoder(load_profile(profile).encoder)
    facts = {
        "open_s": time.monotonic() - started,
        "backend": opened.encoders[0].backend,
        "identity": opened.encoders[0].identity.hex(),
        "refused": opened.refused,
        "passed": opened.self_test.passed,
        "cosine": opened.self_test.cosine,
        "message": opened.self_test.message,
    }
    started = time.monotonic()
    pictures = np.load(frames)
    embeddings = [opened.encoders[0].encode(picture) for picture in pictures]
    facts["encode_s"] = (time.monotonic() - started) / max(1, len(pictures))
    opened.close()
    np.savez(out, embeddings=np.asarray(embeddings, np.float32), facts=json.dumps(facts))


if __name__ == "__main__":
    main()
