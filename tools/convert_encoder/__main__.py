"""Converters of vision encoders, on a PC:

    python -m tools.convert_encoder rknn PROFILE OUT.rknn    Rockchip NPUs
    python -m tools.convert_encoder qdq PROFILE OUT.onnx     Qualcomm NPUs

Each says more with --help. PROFILE is a model profile with a backend of type onnx.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

_MODULES = {"rknn": "tools.convert_encoder.rknn_conversion", "qdq": "tools.convert_encoder.qdq"}


def main(argv: Sequence[str]) -> int:
    """Run the converter that the first argument names; its exit code."""
    if not argv or argv[0] not in _MODULES:
        print(__doc__, file=sys.stdout if argv and argv[0] in ("-h", "--help") else sys.stderr)
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    # Each converter imports what the other does not need.
    convert: Callable[[Sequence[str]], int] = import_module(_MODULES[argv[0]]).main
    return convert(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
