"""Tries to open the QNN encoder whose file is the argument; prints the error. For aarch64."""

from __future__ import annotations

import sys
from pathlib import Path

from edge_vlm_ros.model_profile import QnnBackend, load_profile
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.qnn_encoder import QnnEncoder


def main() -> None:
    profile, model = sys.argv[1:]
    backend = QnnBackend(type="qnn", file=Path(model), input="image", output="embeds")
    try:
        QnnEncoder(load_profile(profile).encoder, backend, cache=Path(model).parent)
    except EncoderError as error:
        print(f"error: {error}")


if __name__ == "__main__":
    main()
