"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from edge_vlm_ros.engines.devices import list_devices


def describe_machine() -> str:
    """GPUs, processor, cores, memory and the versions that matter, in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    gpus = "".join(f"{info.description}, " for info in list_devices() if info.kind != "cpu")
    return (
        f"{gpus}{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"llama-cpp-python {version('llama-cpp-python')}, onnxruntime {version('onnxruntime')}, "
        f"load average at the start {load:.2f}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"
