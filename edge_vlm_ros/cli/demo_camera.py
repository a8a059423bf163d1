"""`ros2 run edge_vlm_ros demo_camera`: publish drawn table-top scenes like a camera."""

from __future__ import annotations

import rclpy
from rclpy.executors import ExternalShutdownException

from edge_vlm_ros.ros.demo_camera import DemoCamera


def main(args: list[str] | None = None) -> int:
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


if __name__ == "__main__":
    raise SystemExit(main())
