"""Write a random model's language.gguf and mmproj.gguf.

python -m tools.make_random_vlm smolvlm2 --out /tmp/smolvlm2
"""

from __future__ import annotations

import argparse
from pathlib import Path

from . import ARCHITECTURES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.make_random_vlm")
    parser.add_argument("architecture", choices=ARCHITECTURES)
    parser.add_argument("--out", required=True, type=Path, help="folder")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for path in ARCHITECTURES[args.architecture].write(args.out, args.seed):
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
