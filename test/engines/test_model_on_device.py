"""Where a model's work is put, and what of its geometry a snapshot depends on."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import pytest
from abort_cases import MODEL, context_on
from tiny_models import tiny_llama

from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.devices import CPU, open_device
from edge_vlm_ros.engines.errors import ContextError
from edge_vlm_ros.engines.model import LlamaModel


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The parameters that llama.cpp was last given, by name of the structure."""
    seen: dict[str, Any] = {}
    load, init = llama.llama_model_load_from_file, llama.llama_init_from_model

    def recording_load(path: bytes, params: Any) -> Any:
        devices = []
        if params.devices:
            array = (ctypes.c_void_p * 2).from_address(params.devices)
            devices = list(array)
        seen["model"] = {
            "devices": devices,
            "n_gpu_layers": params.n_gpu_layers,
            "split_mode": params.split_mode,
            "main_gpu": params.main_gpu,
        }
        return load(path, params)

    def recording_init(model: Any, params: Any) -> Any:
        seen["context"] = (params.offload_kqv, params.op_offload)
        return init(model, params)

    monkeypatch.setattr(llama, "llama_model_load_from_file", recording_load)
    monkeypatch.setattr(llama, "llama_init_from_model", recording_init)
    return seen


def test_a_cpu_engine_gives_no_work_away(given: dict[str, Any]) -> None:
    """In a build with a GPU each of these alone would still use it."""
    model = LlamaModel(MODEL)
    context_on(CPU, model).close()
    model.close()
    assert given["model"] == {
        "devices": [],
        "n_gpu_layers": 0,
        "split_mode": llama.LLAMA_SPLIT_MODE_NONE,
        "main_gpu": -1,
    }
    assert given["context"] == (False, False)


def test_a_model_on_a_device_is_on_that_one_alone(given: dict[str, Any]) -> None:
    device = open_device("rpc", n_threads=1)
    model = LlamaModel(MODEL, device=device)
    context_on(device, model).close()
    model.close()
    device.close()
    assert given["model"] == {
        "devices": [device.handle, None],
        "n_gpu_layers": -1,
        "split_mode": llama.LLAMA_SPLIT_MODE_NONE,
        "main_gpu": 0,
    }
    assert given["context"] == (True, False)


def test_contexts_share_a_model_on_the_cpu(model: LlamaModel) -> None:
    first, second = context_on(CPU, model), context_on(CPU, model)
    first.close()
    second.decode_tokens([5], [0], [0], [True])
    second.close()


def test_a_context_that_cannot_be_made_leaves_the_device_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device("rpc", n_threads=1)
    model = LlamaModel(MODEL, device=device)
    with monkeypatch.context() as patch:
        patch.setattr(llama, "llama_init_from_model", lambda *_: None)
        with pytest.raises(ContextError):
            context_on(device, model)
    context_on(device, model).close()
    model.close()
    device.close()


def test_digest(model: LlamaModel) -> None:
    assert model.digest == hashlib.sha256(MODEL.read_bytes()).digest()
    known = LlamaModel(MODEL, digest=b"k" * 32)
    assert known.digest == b"k" * 32  # not read again
    known.close()


def test_geometry(model: LlamaModel, tmp_path: Path) -> None:
    assert (model.architecture, model.n_layer) == ("qwen3", 8)
    assert (model.n_embd_k, model.n_embd_v) == (128, 128)
    assert (model.rope_type, model.rope_freq_base, model.rope_freq_scale) == (2, 10000.0, 1.0)
    tiny = LlamaModel(tiny_llama(tmp_path / "tiny.gguf", head_dim=48))
    assert (tiny.architecture, tiny.n_layer, tiny.head_dims) == ("llama", 1, (48, 48))
    assert (tiny.n_embd_k, tiny.n_embd_v) == (96, 96)
    tiny.close()


def test_kv_bytes_are_what_a_state_of_all_cells_holds(model: LlamaModel) -> None:
    context = LlamaContext(model, n_ctx=256, n_seq_max=2, n_batch=256, kv_type="f16", n_threads=1)
    context.decode_tokens([5] * 256, range(256), [0] * 256, [False] * 256)
    state = llama.llama_state_seq_get_size(context.handle, 0)
    context.close()
    rows = 8 * 256 * (128 + 128) * 2
    assert context.kv_bytes == rows
    assert rows < state < rows * 1.05
