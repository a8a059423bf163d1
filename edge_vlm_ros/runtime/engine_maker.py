"""Loads models onto devices and starts engines on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.devices import CPU, Device, open_device
from edge_vlm_ros.engines.errors import DeviceError, EngineError
from edge_vlm_ros.engines.llama_engine import LlamaCppEngine
from edge_vlm_ros.engines.memory import ProcessMemory, process_memory
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.protocol import EventSink
from edge_vlm_ros.model_profile import ModelProfile


@dataclass(frozen=True)
class EngineSizes:
    """Bounds that all engines of a runtime share; see LlamaCppEngine."""

    max_trunks: int
    max_branches: int
    max_exports: int
    answer_cells: int
    stop_tokens: frozenset[int]
    n_ctx: Callable[[EngineConfig], int]


class EngineMaker:
    """Engines on one device share one model object: its weights are there once.

    The CPU's model is loaded at once, for its vocabulary too, and stays; it is rearranged only if
    one of ``engines`` computes in it that way. Another device's is
    loaded with its first engine and again after the device was lost. Raises ModelLoadError and
    what else LlamaModel raises.
    """

    def __init__(
        self,
        profile: ModelProfile,
        engines: Sequence[EngineConfig],
        progress: Callable[[float], None],
    ) -> None:
        self._profile = profile
        self._digest = bytes.fromhex(profile.language.sha256) if profile.language.sha256 else None
        self._lock = threading.Lock()
        first = EngineConfig(repack=any(e.device == CPU.text and e.repack for e in engines))
        self.vocabulary = self._load(CPU, first.repack, progress)
        self._models: dict[str, LlamaModel] = {_device_key(first): self.vocabulary}
        self._devices: dict[str, Device] = {}
        self._sizes: EngineSizes | None = None

    def set_sizes(self, sizes: EngineSizes) -> None:
        """Must be called before the first engine is made."""
        self._sizes = sizes

    def make(self, config: EngineConfig, emit: EventSink) -> LlamaCppEngine:
        """Start an engine. Raises EngineError."""
        sizes = self._sizes
        if sizes is None:
            raise RuntimeError("set_sizes comes first")
        try:
            model = self._model(config)
        except DeviceError as error:
            raise DeviceError(f"engine {config.name!r}: {error}") from error
        return LlamaCppEngine(
            model,
            config,
            n_ctx=sizes.n_ctx(config),
            max_trunks=sizes.max_trunks,
            max_branches=sizes.max_branches,
            max_exports=sizes.max_exports,
            answer_cells=sizes.answer_cells,
            stop_tokens=sizes.stop_tokens,
            emit=emit,
        )

    def memory(self, config: EngineConfig) -> ProcessMemory:
        """Of the process that holds the engine's KV; zeros when that has just died."""
        device = self._devices.get(_device_key(config))
        server = None if device is None else device.server
        try:
            return process_memory(None if server is None else server.pid)
        except EngineError:
            return ProcessMemory(0, 0)

    def close(self) -> None:
        """Free all models and devices; engines on them must be closed before."""
        for model in self._models.values():
            model.close()
        for device in self._devices.values():
            device.close()

    def _model(self, config: EngineConfig) -> LlamaModel:
        key = _device_key(config)
        with self._lock:  # two engines that share a device may be started at once
            device = self._devices.get(key)
            if device is not None and device.is_lost():
                self._models.pop(key).close()
                self._devices.pop(key).close()
            if key not in self._models:
                opened = open_device(
                    config.device,
                    allow_remote=config.allow_remote,
                    cpus=config.cpus,
                    n_threads=config.threads,
                )
                self._devices[key] = opened
                try:
                    self._models[key] = self._load(opened, config.repack, lambda fraction: None)
                except BaseException:
                    self._devices.pop(key).close()
                    raise
            return self._models[key]

    def _load(self, device: Device, repack: bool, progress: Callable[[float], None]) -> LlamaModel:
        path = self._profile.language.file
        return LlamaModel(path, progress, device=device, digest=self._digest, repack=repack)


def _device_key(config: EngineConfig) -> str:
    """Engines with equal keys share weights: an own server belongs to one engine alone."""
    if config.device == "rpc":
        return f"rpc of {config.name}"
    return config.device if config.repack or config.device != CPU.text else "cpu, not rearranged"
