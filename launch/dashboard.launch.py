"""Shows what the node `edge_vlm` does in rqt: plots, robot monitor, answers on their frames.

ros2 launch edge_vlm_ros dashboard.launch.py

It runs where there is a screen, on the robot or beside it. The perspective is for the node
/edge_vlm with a stream `camera` and an engine `cpu`: see docs/dashboards.md for others. Needs, from
the distribution: `ros-$ROS_DISTRO-rqt-gui`, `-rqt-plot`, `-rqt-robot-monitor`, `-rqt-image-view`
and `-diagnostic-aggregator`.
"""

from __future__ import annotations

from pathlib import Path

from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchDescription

DASHBOARDS = Path(__file__).resolve().parents[1] / "dashboards"


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "perspective",
                default_value=str(DASHBOARDS / "edge_vlm.perspective"),
                description="File with the perspective of rqt",
            ),
            Node(
                package="diagnostic_aggregator",
                executable="aggregator_node",
                name="diagnostic_aggregator",
                parameters=[str(DASHBOARDS / "diagnostics_aggregator.yaml")],
            ),
            Node(
                package="rqt_gui",
                executable="rqt_gui",
                name="edge_vlm_dashboard",
                arguments=["--perspective-file", LaunchConfiguration("perspective")],
            ),
        ]
    )
