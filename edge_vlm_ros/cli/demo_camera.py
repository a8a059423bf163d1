"""`ros2 run edge_vlm_ros demo_camera`: publish drawn table-top scenes like a camera."""

from __future__ import annotations

import rclpy
from rclpy.executors import ExternalShutdownException

from edge_vlm_ros.ros.demo_camera import PARAMETERS, DemoCamera

from .ros_arguments import check_arguments


def main(args: list[str] | None = None) -> int:
    check_arguments("demo_camera", _description(), args)
    rclpy.init(args=args)
    node = DemoCamera()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


def _description() -> str:
    lines = [f"  {spec.name}: {spec.description} (default {spec.default})" for spec in PARAMETERS]
    return "\n".join(
        [
            "Publishes image_raw and truth.",
            "",
            "Its namespace is the stream it films: --ros-args -r __ns:=/table. Parameters, each",
            "with --ros-args -p NAME:=VALUE:",
            *lines,
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
