"""Messages of the ROS-free packages in the ROS log."""

from __future__ import annotations

import logging
from typing import Any


class RosLogHandler(logging.Handler):
    """Hands Python log records to a node's logger."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        # rclpy wants each severity logged from a line of its own.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        elif record.levelno >= logging.INFO:
            self._logger.info(text)
        else:
            self._logger.debug(text)


def log_to_ros(logger: Any) -> None:
    """Send everything that this package logs with Python's logging to ``logger`` from now on."""
    ours = logging.getLogger("edge_vlm_ros")
    for handler in list(ours.handlers):
        if isinstance(handler, RosLogHandler):
            ours.removeHandler(handler)
    ours.addHandler(RosLogHandler(logger))
    ours.setLevel(logging.INFO)
    ours.propagate = False
