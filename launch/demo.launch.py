"""Starts the node with the demo model and two cameras that film drawn tables.

ros2 launch edge_vlm_ros demo.launch.py
ros2 run edge_vlm_ros ask "What do you see?" --stream table
"""

from __future__ import annotations

from pathlib import Path

from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node

from launch import LaunchDescription

SHARE = Path(__file__).resolve().parents[1]
CAMERAS = {
    "table": {"width": 640, "height": 480, "seed": 7},
    "shelf": {"width": 224, "height": 224, "seed": 11},
}


def generate_launch_description() -> LaunchDescription:
    node = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(SHARE / "launch" / "edge_vlm.launch.py")),
        launch_arguments={"params_file": str(SHARE / "config" / "demo.yaml")}.items(),
    )
    cameras = [
        Node(
            package="edge_vlm_ros",
            executable="demo_camera",
            namespace=stream,
            name=f"{stream}_camera",
            parameters=[parameters],
        )
        for stream, parameters in CAMERAS.items()
    ]
    return LaunchDescription([node, *cameras])
