"""A USB camera and the node `edge_vlm`: an example to start from.

ros2 launch edge_vlm_ros usb_camera.launch.py video_device:=/dev/video0 model:=smolvlm2-500m
ros2 launch edge_vlm_ros usb_camera.launch.py driver:=usb_cam namespace:=robot1

The camera's driver is a component in the container `camera_container`, which further components
(rectification, resizing) can be loaded into without copying its images. `edge_vlm` is written in
Python, so it has a process of its own, and takes the images reliably: both drivers send them so.
The driver comes from the distribution: `sudo apt install ros-$ROS_DISTRO-v4l2-camera` or
`ros-$ROS_DISTRO-usb-cam`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import ComposableNodeContainer
from launch_ros.descriptions import ComposableNode

from launch import LaunchContext, LaunchDescription

EDGE_VLM = Path(__file__).resolve().parent / "edge_vlm.launch.py"
STREAM = "camera"

ARGUMENTS = {
    "driver": ("v4l2_camera", "v4l2_camera or usb_cam"),
    "video_device": ("/dev/video0", "The camera"),
    "width": ("640", "Pixels"),
    "height": ("480", "Pixels"),
    "namespace": ("", "Namespace of all nodes"),
}
PASSED_ON = {
    "board": "As of edge_vlm.launch.py",
    "model": "As of edge_vlm.launch.py",
    "annotated_images": "As of edge_vlm.launch.py",
}


def camera(driver: str, video_device: str, width: int, height: int) -> dict[str, Any]:
    """Package, plugin and parameters of a driver that publishes `image_raw`."""
    if driver == "v4l2_camera":
        return {
            "package": "v4l2_camera",
            "plugin": "v4l2_camera::V4L2Camera",
            "parameters": [{"video_device": video_device, "image_size": [width, height]}],
        }
    if driver == "usb_cam":
        size = {"image_width": width, "image_height": height}
        return {
            "package": "usb_cam",
            "plugin": "usb_cam::UsbCamNode",
            "parameters": [{"video_device": video_device, **size}],
        }
    raise ValueError(f"driver must be v4l2_camera or usb_cam, not {driver!r}")


def _actions(context: LaunchContext) -> list[Any]:
    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    namespace = value["namespace"].strip("/")
    passed = {name: LaunchConfiguration(name).perform(context) for name in PASSED_ON}
    component = ComposableNode(
        name="driver",
        namespace="/" + "/".join(filter(None, (namespace, STREAM))),
        **camera(
            value["driver"],
            value["video_device"],
            int(value["width"]),
            int(value["height"]),
        ),
    )
    return [
        ComposableNodeContainer(
            package="rclcpp_components",
            executable="component_container",
            name="camera_container",
            namespace=value["namespace"],
            output="screen",
            composable_node_descriptions=[component],
        ),
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(str(EDGE_VLM)),
            launch_arguments={
                **passed,
                "namespace": value["namespace"],
                "cameras": f"{STREAM}:={STREAM}/image_raw",
                "reliability": "reliable",
            }.items(),
        ),
    ]


def generate_launch_description() -> LaunchDescription:
    described = ARGUMENTS | {name: ("", description) for name, description in PASSED_ON.items()}
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=description)
                for name, (default, description) in described.items()
            ),
            OpaqueFunction(function=_actions),
        ]
    )
