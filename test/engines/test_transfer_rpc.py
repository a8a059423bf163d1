"""KV moves between this process and an engine behind llama.cpp's RPC backend, both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_helpers import Driver, Items, assert_nothing_is_left
from transfer_helpers import check_transfer

from edge_vlm_ros.engines.devices import Device, open_device
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.runtime.prompt import PromptTemplate


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    device = open_device("rpc", n_threads=1)
    yield device
    device.close()


@pytest.fixture(scope="module")
def remote_model(model: LlamaModel, device: Device) -> Iterator[LlamaModel]:
    remote = LlamaModel(model.path, device=device)
    yield remote
    remote.close()


@pytest.fixture
def drivers(
    model: LlamaModel, remote_model: LlamaModel, prompt: PromptTemplate
) -> Iterator[tuple[Driver, Driver]]:
    """One here, one there."""
    pair = Driver(model, prompt), Driver(remote_model, prompt)
    yield pair
    for driver in pair:
        driver.engine.close()


def test_layouts_agree(drivers: tuple[Driver, Driver]) -> None:
    here, there = (driver.engine.layout for driver in drivers)
    assert here == there
    assert [driver.engine.status().device for driver in drivers] == ["cpu", "rpc"]


@pytest.mark.parametrize("direction", [1, -1])
def test_transfer(drivers: tuple[Driver, Driver], story: Items, direction: int) -> None:
    source, target = drivers[::direction]
    check_transfer(source, target, story, same_numbers=True)
    for driver in drivers:
        assert_nothing_is_left(driver)
