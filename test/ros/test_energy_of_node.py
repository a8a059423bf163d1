from __future__ import annotations

from unittest import mock

import pytest

from edge_vlm_ros.ros.energy import open_meter


@pytest.mark.parametrize(
    ("choice", "level"), [("off", "info"), ("/nowhere/power1_input", "warning")]
)
def test_a_sensor_that_was_asked_for_and_is_not_there_is_a_warning(choice: str, level: str) -> None:
    node = mock.Mock()
    meter = open_meter(node, choice)
    assert meter.sensor_name == ""
    meter.close()
    (call,) = node.get_logger.return_value.method_calls
    assert call[0] == level and "energy of answers is not measured" in call[1][0]
