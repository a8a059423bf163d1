"""Numbers on a command line; whoever gives a wrong one is told the range."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argument's type: a whole number from ``least`` to ``most``, both allowed, or of any size.

    It raises argparse.ArgumentTypeError for anything else.
    """
    allowed = f"of {least} or more" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be a whole number {allowed}, not {text}")
        return value

    return parse


def seconds(below: float) -> Callable[[str], float]:
    """An argument's type: a time above 0 and below ``below``.

    It raises argparse.ArgumentTypeError for anything else.
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < below:
            raise argparse.ArgumentTypeError(
                f"must be a number of seconds above 0 and below {below:.0f}, not {text}"
            )
        return value

    return parse
