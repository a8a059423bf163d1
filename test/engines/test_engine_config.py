"""Settings of an engine: its name, device, cores and steps."""

from __future__ import annotations

import os

import pytest

from edge_vlm_ros.engines.config import EngineConfig


@pytest.mark.parametrize("name", ["cpu", "gpu_2", "a"])
def test_names(name: str) -> None:
    assert EngineConfig(name=name).name == name


@pytest.mark.parametrize("name", ["", "CPU", "2cpu", "_cpu", "my engine", "a/b", "a\n", "é"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="small letters, digits and underscores"):
        EngineConfig(name=name)


def test_devices_are_checked() -> None:
    assert EngineConfig().device == "cpu"
    assert EngineConfig(device="rpc:10.0.0.5:5000", allow_remote=True).allow_remote
    with pytest.raises(ValueError, match="engine 'npu': device 'gpu:0': use cpu, vulkan:<n>"):
        EngineConfig(name="npu", device="gpu:0")
    with pytest.raises(ValueError, match="engine 'far': .*no authentication and no encryption"):
        EngineConfig(name="far", device="rpc:10.0.0.5:5000")


def test_cores() -> None:
    usable = sorted(os.sched_getaffinity(0))
    assert EngineConfig(cpus=tuple(usable)).threads == len(usable)
    assert EngineConfig(cpus=(usable[0],), n_threads=3).threads == 3
    with pytest.raises(ValueError, match=r"cpus \[4096\] are not among the cores .*\[.*\]"):
        EngineConfig(cpus=(usable[0], 4096))
    with pytest.raises(ValueError, match="a core twice"):
        EngineConfig(cpus=(usable[0], usable[0]))


def test_a_transfer_step_has_a_length() -> None:
    assert EngineConfig().transfer_tokens == 256
    with pytest.raises(ValueError, match="transfer_tokens must be at least 1"):
        EngineConfig(transfer_tokens=0)
