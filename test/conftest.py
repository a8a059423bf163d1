"""What every test runs in: ROS 2 on this computer only, in a domain of this run's own."""

from __future__ import annotations

import os
import sys

import pytest

# Set before anything imports rclpy or onnxruntime. What the caller has set is kept.
os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 101))
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
if os.environ.get("AMENT_PREFIX_PATH") is None:
    os.environ["AMENT_PREFIX_PATH"] = sys.prefix  # .venv without tools/setup/env.sh

# `make test-vulkan` runs these with another build of llama.cpp.
collect_ignore = [] if "EDGE_VLM_ROS_TEST_VULKAN" in os.environ else ["vulkan"]


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameter files of boards name cores that not every machine has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
