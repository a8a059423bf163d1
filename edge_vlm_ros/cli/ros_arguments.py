"""Command lines of processes whose settings are ROS parameters."""

from __future__ import annotations

import argparse
import sys

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.utilities import remove_ros_args

_UNUSABLE = (rclpy_implementation.RCLInvalidROSArgsError, rclpy_implementation.UnknownROSArgsError)


def check_arguments(name: str, description: str, args: list[str] | None) -> None:
    """Answer --help; end with exit code 2 for what is neither that nor behind --ros-args, and for
    ROS arguments that cannot be used, such as a parameter file that is not there."""
    parser = argparse.ArgumentParser(
        prog=f"ros2 run edge_vlm_ros {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    try:
        rest = remove_ros_args(sys.argv if args is None else ["", *args])[1:]
    except _UNUSABLE as error:
        parser.error(str(error).splitlines()[0])
    parser.parse_args(rest)
