"""The energy meter of the node."""

from __future__ import annotations

from rclpy.node import Node

from edge_vlm_ros.energy.meter import EnergyMeter
from edge_vlm_ros.energy.sensors import NoSensor, find_sensor


def open_meter(node: Node, power_sensor: str) -> EnergyMeter:
    """The meter for a value of the parameter ``power_sensor``; without a sensor it says why."""
    try:
        sensor = find_sensor(power_sensor)
    except NoSensor as reason:
        asked_for = power_sensor not in ("auto", "off")
        log = node.get_logger().warning if asked_for else node.get_logger().info
        log(f"energy of answers is not measured: {reason}")
        return EnergyMeter(None)
    node.get_logger().info(f"energy of answers is measured by {sensor.name}")
    return EnergyMeter(sensor)
