"""`ros2 run edge_vlm_ros edge_vlm`: the node in a process of its own."""

from __future__ import annotations

import sys

import rclpy
from rclpy.signals import SignalHandlerOptions

from edge_vlm_ros.ros.allocator import limit_arenas
from edge_vlm_ros.ros.node import EdgeVlmNode
from edge_vlm_ros.ros.spinning import StopSignals, spin_in_background

from .ros_arguments import check_arguments

_SWITCH_INTERVAL_S = 0.0005
_DESCRIPTION = """Answers questions about camera streams.

Parameters are ROS parameters, listed in README.md:
  --ros-args --params-file FILE     from a file, e.g. config/desktop.yaml
  --ros-args -p NAME:=VALUE         a single one"""


def main(args: list[str] | None = None) -> int:
    """Exit code 0 after SIGINT or SIGTERM, 2 for arguments that cannot be used."""
    check_arguments("edge_vlm", _DESCRIPTION, args)
    limit_arenas()
    # The engine's thread needs the interpreter for a moment after every token; with Python's 5 ms
    # it would wait for that behind other threads' callbacks.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Our own signal handlers: the context must outlive the signal for goals to get their results.
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    with StopSignals() as stop:
        node = EdgeVlmNode()
        with spin_in_background(node):
            if node.parameters.get("autostart"):
                started = node.change("configure") and node.change("activate")
                if not started:
                    node.get_logger().error(
                        "not started. Mend the parameters and restart, or: ros2 lifecycle set "
                        f"{node.get_fully_qualified_name()} configure (and activate)"
                    )
            stop.wait()
            node.get_logger().info("shutting down")
            node.close()
        node.destroy_node()
    rclpy.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
