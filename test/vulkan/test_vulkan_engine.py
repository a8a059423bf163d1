"""A model on a GPU backend computes what it computes on the CPU, and each stays on its device."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
from vulkan_helpers import MODEL, MakeContext, contexts

from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.devices import list_devices, open_device
from edge_vlm_ros.engines.errors import DeviceError
from edge_vlm_ros.engines.model import LlamaModel

PROMPT = tuple(range(100, 148))  # more rows than the 32 from which llama.cpp would offload


@pytest.fixture
def make_context() -> Iterator[MakeContext]:
    with contexts() as make:
        yield make


def greedy(context: LlamaContext, n: int) -> list[int]:
    """The prompt in one chunk, then ``n`` tokens, each the most likely."""
    context.extend(0, 0, PROMPT[:-1])
    n_vocab = llama.llama_vocab_n_tokens(
        llama.llama_model_get_vocab(llama.llama_get_model(context.handle))
    )
    tokens = [PROMPT[-1]]
    for position in range(len(PROMPT) - 1, len(PROMPT) - 1 + n):
        context.decode_tokens(tokens[-1:], [position], [0], [True])
        logits = llama.llama_get_logits_ith(context.handle, -1)
        tokens.append(int(np.ctypeslib.as_array(logits, (n_vocab,)).argmax()))
    return tokens[1:]


def test_the_device_is_listed() -> None:
    kinds = {info.name: info.kind for info in list_devices()}
    assert kinds["Vulkan0"] in ("gpu", "igpu")
    assert kinds["CPU"] == "cpu"
    assert open_device("Vulkan0").handle == open_device("vulkan:0").handle


def test_the_same_greedy_tokens_as_on_the_cpu(make_context: MakeContext) -> None:
    assert greedy(make_context("vulkan:0"), 12) == greedy(make_context("cpu"), 12)


@pytest.mark.parametrize(("text", "on_gpu"), [("cpu", False), ("vulkan:0", True)])
def test_buffers_are_where_they_belong(
    make_context: MakeContext, caplog: pytest.LogCaptureFixture, text: str, on_gpu: bool
) -> None:
    caplog.set_level(logging.DEBUG, logger="edge_vlm_ros.llama_cpp")
    greedy(make_context(text), 1)
    buffers = [line for line in caplog.messages if "buffer size" in line]
    assert any("KV buffer" in line for line in buffers)
    assert any("compute buffer" in line for line in buffers)
    for line in buffers:
        if "KV buffer" in line or not on_gpu:
            assert ("Vulkan0" in line) == on_gpu, line


def test_one_engine_on_a_vulkan_device(make_context: MakeContext) -> None:
    make_context("vulkan:0")
    with pytest.raises(DeviceError, match="device vulkan:0 has an engine already"):
        make_context("vulkan:0")


def test_weights_are_on_the_device(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="edge_vlm_ros.llama_cpp")
    model = LlamaModel(MODEL, device=open_device("vulkan:0"))
    model.close()
    assert any("offloaded 9/9 layers" in line for line in caplog.messages)
