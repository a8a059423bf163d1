"""The file that a command is to draw into."""

from __future__ import annotations

import argparse
from pathlib import Path


def picture_file(text: str) -> Path:
    """An argument's value as the PNG to write, which can be written as far as can be seen before.

    Raises argparse.ArgumentTypeError.
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; give the name of a PNG file")
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"{text} does not end in .png")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path
