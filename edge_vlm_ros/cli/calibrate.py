"""`ros2 run edge_vlm_ros calibrate`: measures what the engines of a configuration cost."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.planning.costs import CostModel
from edge_vlm_ros.ros.parameter_file import read_config
from edge_vlm_ros.runtime import ConfigError, Runtime
from edge_vlm_ros.runtime.config import RuntimeConfig
from edge_vlm_ros.vision.errors import EncoderError

from .calibration_picture import save_picture
from .calibration_table import cost_tables
from .picture_file import picture_file

_EPILOG = """What is measured is kept, and used by every node with the same model, engines and
machine whose planning.calibration is auto. Nothing else should keep the machine busy meanwhile;
a node that runs already is best stopped."""
_SWITCH_INTERVAL_S = 0.0005
"""As in the node: how long engines wait for the interpreter is part of what they cost."""
_NO_MATPLOTLIB = (
    "a picture needs matplotlib, which is not installed: install it (apt install "
    "python3-matplotlib, or pip install matplotlib), or ask for none with --no-picture"
)


def main(args: list[str] | None = None) -> int:
    """Exit code 1 when something cannot be measured or written, 2 for unusable arguments."""
    arguments = _parser().parse_args(args)
    if arguments.picture is not None and find_spec("matplotlib") is None:
        print(f"calibrate: {_NO_MATPLOTLIB}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("edge_vlm_ros").setLevel(logging.INFO)
    try:
        config = read_config(arguments.parameters)
    except (OSError, ValueError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 2
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        costs = _measure(config)
    except (EngineError, EncoderError, ConfigError, OSError, ValueError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 1
    print(cost_tables(costs, config.engines))
    if arguments.picture is not None:
        try:
            longest = config.profile.language.context_tokens
            save_picture(arguments.picture, costs, config.engines, longest)
        except OSError as error:
            print(f"calibrate: the picture cannot be written: {error}", file=sys.stderr)
            return 1
        print(f"\npicture: {arguments.picture}")
    return 0


def _measure(config: RuntimeConfig) -> CostModel:
    """Load everything as the node does, measured anew."""
    planning = replace(config.planning, calibration="always")
    with closing(Runtime(replace(config, planning=planning))) as runtime:
        runtime.load(_Progress().report)
        return runtime.costs


class _Progress:
    """Says what is being done whenever that changes."""

    def __init__(self) -> None:
        self._said = ""

    def report(self, what: str, done: float) -> None:
        if what != self._said:
            print(what, file=sys.stderr)
        self._said = what


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ros2 run edge_vlm_ros calibrate",
        description="Measure what each step costs on each engine, alone and beside the others; "
        "print a table and draw a picture.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "parameters",
        nargs="?",
        type=Path,
        metavar="PARAMETERS.yaml",
        help="a parameter file of the node, e.g. config/two_engines.yaml; the defaults without",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--picture",
        type=picture_file,
        default=Path("calibration.png"),
        metavar="FILE",
        help="where to draw (default: %(default)s)",
    )
    group.add_argument(
        "--no-picture", dest="picture", action="store_const", const=None, help="draw nothing"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
