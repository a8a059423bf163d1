"""What the policies benchmark runs on: engines, each on cores of its own, and a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edge_vlm_ros.engines.config import EngineConfig, KvType

from .models import BenchmarkModel, random_model

ModelName = Literal["demo", "0.5b", "3b"]
MODELS: dict[ModelName, tuple[str, str]] = {
    "demo": ("demo", "Q8_0"),
    "0.5b": ("qwen2.5-0.5b", "Q8_0"),
    "3b": ("qwen2.5-3b", "Q4_0"),
}
MAX_PARALLEL = 8
"""As many answers as a burst has: batching is at its best, for one engine as for two."""
_SECOND = {"soc": "rpc", "rpc": "rpc", "cpus": "second"}
"""Name of the second engine."""
_FEW_CORES = 4
"""With fewer cores all are the engines', which share them with the rest of the process."""


@dataclass(frozen=True)
class Setup:
    """``cpus`` are the cores of everything but the engines (encoder, coordinator, cameras); none:
    no core is kept for them. ``wide`` is one engine on all cores that the engines have together,
    for comparison, where both are on CPUs."""

    name: str
    engines: tuple[EngineConfig, ...]
    cpus: tuple[int, ...]
    wide: EngineConfig | None = None

    def describe(self) -> str:
        parts = [
            f"{e.name} ({e.device}, {_count(e.cpus)}, {e.n_threads or len(e.cpus)} threads)"
            for e in self.engines
        ]
        rest = f"; everything else on {_count(self.cpus)}" if self.cpus else ""
        return f"{' and '.join(parts)}{rest}"


def endless_model(name: ModelName) -> BenchmarkModel:
    """Random weights whose answers never end by themselves, behind the demo's encoder."""
    return random_model(*MODELS[name], encoder="demo", endless=True)


def parse_setup(text: str, kv_type: KvType, cores: Sequence[int] | None = None) -> Setup:
    """``soc``: a CPU engine on two thirds of the cores and an RPC server on the others, like a CPU
    and a GPU that share memory; ``soc:10+5`` says how many cores each has. An RPC server computes
    without the matrix units and rearranged weights that llama.cpp has for its own CPU engines, so
    the CPU engine does without them too: a core of either is as fast. ``rpc:10+5`` lets the CPU
    engine have them, ``cpus:10+5`` takes a second CPU engine in the place of the RPC server.
    ``DEVICE,DEVICE``, such as ``cuda:0,cpu``: GPUs with one core each, the others divided. Raises
    ValueError.
    """
    usable = sorted(os.sched_getaffinity(0)) if cores is None else list(cores)
    if len(usable) < 2:
        raise ValueError("the policies benchmark needs two cores")
    own = usable[-1:] if len(usable) >= _FEW_CORES else []
    free = usable[: len(usable) - len(own)]
    kind, _, counts = text.partition(":")
    if kind in _SECOND:
        first, second = _soc_cores(counts, len(free))
        cpu = _engine("cpu", "cpu", free[:first], kv_type, repack=kind != "soc")
        name, device = _SECOND[kind], "cpu" if kind == "cpus" else "rpc"
        other = _engine(name, device, free[first : first + second], kv_type)
        wide = replace(cpu, cpus=tuple(free))
        return Setup(f"{kind}:{first}+{second}", (cpu, other), tuple(own), wide)
    devices = text.split(",")
    if len(devices) != 2 or len(set(devices)) != 2:
        raise ValueError(
            f"engines are soc, rpc or cpus, each also with :N+N, or two different devices, not "
            f"{text!r}"
        )
    return Setup(text, tuple(_deal(devices, free, kv_type)), tuple(own))


def _soc_cores(counts: str, n: int) -> tuple[int, int]:
    if not counts:
        second = max(1, round(n / 3))
        return n - second, second
    parts = counts.split("+")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"soc takes the cores of two engines, such as soc:10+5, not {counts!r}")
    first, second = int(parts[0]), int(parts[1])
    if first + second > n:
        raise ValueError(f"soc:{counts} needs {first + second} cores for engines; there are {n}")
    return first, second


def _deal(devices: Sequence[str], cores: list[int], kv_type: KvType) -> list[EngineConfig]:
    on_cpu = [device for device in devices if device.startswith(("cpu", "rpc"))]
    left = list(cores)
    given = {d: [left.pop()] for d in devices if d not in on_cpu and len(left) > len(on_cpu)}
    for index, device in enumerate(on_cpu):
        n = len(left) // (len(on_cpu) - index)
        given[device], left = left[:n], left[n:]
    return [
        _engine(device.partition(":")[0], device, given.get(device, cores[:1]), kv_type)
        for device in devices
    ]


def _engine(
    name: str, device: str, cores: Sequence[int], kv_type: KvType, *, repack: bool = True
) -> EngineConfig:
    return EngineConfig(
        name=name,
        device="cuda:0" if device == "cuda" else device,
        cpus=tuple(cores),
        kv_type=kv_type,
        max_parallel=MAX_PARALLEL,
        repack=repack,
    )


def _count(cores: Sequence[int]) -> str:
    return "1 core" if len(cores) == 1 else f"{len(cores)} cores"
