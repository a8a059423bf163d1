"""How much memory a model takes with a configuration, and how much this machine has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from edge_vlm_ros.engines.config import EngineConfig, KvType
from edge_vlm_ros.engines.device_text import parse_device
from edge_vlm_ros.engines.devices import list_devices
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.runtime.config import RuntimeConfig
from edge_vlm_ros.runtime.prompt import prompt_template
from edge_vlm_ros.runtime.sizing import context_cells, history_limits

from .model_findings import Finding, ok, problem

PROGRAM_BYTES = 300 * 2**20
"""Python, libraries and compute buffers: 150 to 200 MiB measured with 0.01 and 0.5 billion
parameters; the rest is margin."""
_ELEMENTS = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q8_0": (32, 34)}
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Share:
    """Bytes for one purpose; ``device`` is ``""`` in the machine's own memory, else ggml's name of
    a device with memory of its own."""

    what: str
    n_bytes: int
    device: str = ""


def bytes_per_cell(model: LlamaModel, kv_type: KvType) -> int:
    """K and V of one token in all layers."""
    n_elements, n_bytes = _ELEMENTS[kv_type]
    return model.n_layer * (model.n_embd_k + model.n_embd_v) * n_bytes // n_elements


def cells(config: RuntimeConfig, model: LlamaModel) -> dict[str, int]:
    """KV cells of each engine, as the node would make them. Raises ConfigError."""
    prompt = prompt_template(config.profile, model)
    limits = [
        history_limits(stream.history, config.profile, prompt, config.questions)
        for stream in config.streams
    ]
    return {
        engine.name: context_cells(engine, limits, config.questions) for engine in config.engines
    }


def shares(config: RuntimeConfig, model: LlamaModel, encoder_file: Path | None) -> Iterator[Share]:
    """What takes memory, at most. Raises ConfigError."""
    devices: set[str] = set()
    for engine in config.engines:
        where = _own_memory(engine)
        own_process = parse_device(engine.device, allow_remote=True).kind == "rpc_own"
        if where is None:  # a server elsewhere
            continue
        # Engines on one device share the weights; a server process of our own has its copy.
        key = f"rpc {engine.name}" if own_process else where or "host"
        if key not in devices:
            devices.add(key)
            yield Share(f"weights ({key})", model.n_bytes, where)
    for engine in config.engines:
        where = _own_memory(engine)
        if where is not None:
            n = cells(config, model)[engine.name]
            size = n * bytes_per_cell(model, engine.kv_type)
            yield Share(f"KV of {engine.name}, {n} cells {engine.kv_type}", size, where)
    if encoder_file is not None:
        yield Share("encoder (its file)", encoder_file.stat().st_size)
    yield Share("embedding cache, at most", config.vision.cache_bytes)
    if len(config.engines) > 1 or any(engine.n_ctx for engine in config.engines):
        yield Share("exported KV, at most", config.placement.snapshot_bytes)
    yield Share("program and buffers, roughly", PROGRAM_BYTES)


def check_memory(parts: Sequence[Share]) -> Iterator[Finding]:
    """Compare with what is free now, on each device that is used."""
    for device in sorted({part.device for part in parts}):
        needed = sum(part.n_bytes for part in parts if part.device == device)
        free, total = _device_memory(device) if device else host_memory()
        name = device or "memory"
        text = f"needs {_mib(needed)}, free {_mib(free)} of {_mib(total)}"
        if needed <= free:
            yield ok(name, text)
        elif needed <= total:
            yield problem(name, f"{text}: end other programs, or see docs/models.md, memory")
        else:
            yield problem(
                name,
                f"{text}: take a smaller model or quantisation, fewer streams, or lower "
                "history.max_frames or engine.NAME.n_ctx",
            )


def host_memory() -> tuple[int, int]:
    """(free, total) bytes, within the limit of a container."""
    memory = psutil.virtual_memory()
    free, total = int(memory.available), int(memory.total)
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and limit < total:
        return min(free, max(0, limit - (used or 0))), limit
    return free, total


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _own_memory(engine: EngineConfig) -> str | None:
    """The name of the engine's device if that has memory of its own, "" for the machine's memory,
    None when it is not on this machine or is not known."""
    device = parse_device(engine.device, allow_remote=True)
    if device.kind in ("cpu", "rpc_own"):
        return ""
    if device.kind == "rpc_server":
        return None
    kinds = {info.name: info.kind for info in list_devices()}
    if device.name not in kinds:
        return None
    return device.name if kinds[device.name] == "gpu" else ""


def _device_memory(name: str) -> tuple[int, int]:
    [found] = [info for info in list_devices() if info.name == name]
    return found.memory_free, found.memory_total


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"
