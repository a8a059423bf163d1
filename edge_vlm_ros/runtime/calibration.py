"""What the engines and the encoder of a runtime cost: read from disk, or measured before use."""

from __future__ import annotations

import logging
import os
import platform
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from pathlib import Path
from typing import Any

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.devices import list_devices
from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.model_profile import sha256_file
from edge_vlm_ros.planning.cost_store import default_folder, load_costs, store_costs
from edge_vlm_ros.planning.costs import ENCODER, Busy, CostModel, EngineCosts
from edge_vlm_ros.planning.rough import rough_costs
from edge_vlm_ros.vision.encoder import Encoder

from .calibration_engine import EngineBench, EngineRoom
from .calibration_pairs import EncoderBench, PairBench
from .config import QuestionLimits, RuntimeConfig
from .engine_slots import EngineSlots
from .engine_talk import EngineTalk
from .prompt import PromptTemplate
from .sizing import answer_cells

_logger = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with what is being measured and how far all of it is, 0 to 1."""


@dataclass(frozen=True)
class CalibrationTime:
    """Seconds to be spent at most, about: slow models take longer, as each kind of step must be
    seen once, and fast ones less."""

    engine_s: float = 8.0
    """For each engine by itself."""
    pair_s: float = 1.0
    """For each two engines, and each engine with the encoder."""
    encoder_s: float = 0.5


def stored_or_calibrated(
    config: RuntimeConfig,
    slots: EngineSlots,
    inbox: queue.SimpleQueue[object],
    prompt: PromptTemplate,
    encoder: Encoder,
    progress: Progress = lambda what, done: None,
) -> CostModel:
    """The costs that ``config.planning.calibration`` asks for: stored, measured or guessed.

    To be called when all engines are started and nobody uses them, their ``inbox`` or the encoder
    yet. What is measured is stored. Raises EngineError and EncoderError.
    """
    planning = config.planning
    if planning.calibration == "never":
        return rough_costs([slots.engine(name).status() for name in slots.names], [ENCODER])
    folder = Path(planning.calibration_folder).expanduser()
    if not planning.calibration_folder:
        folder = default_folder()
    key = calibration_key(config, slots, encoder)
    stored = load_costs(folder, key) if planning.calibration == "auto" else None
    if stored is not None:
        return stored
    _logger.info("measuring what engines and encoder cost")
    context = config.profile.language.context_tokens
    costs = calibrate(slots, inbox, prompt, config.questions, context, encoder, progress=progress)
    try:
        _logger.info("measured costs are kept in %s", store_costs(folder, key, costs))
    except OSError as error:
        _logger.warning("measured costs are not kept, %s cannot be written: %s", folder, error)
    return costs


def calibrate(
    slots: EngineSlots,
    inbox: queue.SimpleQueue[object],
    prompt: PromptTemplate,
    questions: QuestionLimits,
    context_tokens: int,
    encoder: Encoder | None,
    time: CalibrationTime = CalibrationTime(),  # noqa: B008 (frozen)
    progress: Progress = lambda what, done: None,
) -> CostModel:
    """Measure every engine and the encoder alone, then every two of them together.

    Nobody else may use the engines, their ``inbox`` or the encoder meanwhile; the engines hold
    nothing of it afterwards. ``context_tokens`` are what the model was trained on. Raises
    EngineError, also for an engine that fails meanwhile, and EncoderError.
    """
    room = answer_cells(questions)
    tokens = prompt.open_tokens + prompt.ask_tokens or (0,)

    def engine_room(config: EngineConfig) -> EngineRoom:
        return EngineRoom(config, context_tokens - room, room, questions.max_pending, tokens)

    talk = EngineTalk(slots, inbox)
    benches = {n: EngineBench(talk, n, engine_room(slots[n].config)) for n in slots.names}
    frames = None if encoder is None else EncoderBench(ENCODER, encoder)
    return _Calibration(talk, benches, frames, time, progress).measure()


class _Calibration:
    def __init__(
        self,
        talk: EngineTalk,
        benches: Mapping[str, EngineBench],
        encoder: EncoderBench | None,
        time: CalibrationTime,
        progress: Progress,
    ) -> None:
        self._talk, self._benches, self._encoder = talk, benches, encoder
        self._time, self._progress = time, progress
        n, n_encoders = len(benches), int(encoder is not None)
        self._parts = n + n_encoders + n * (n - 1) // 2 + n * n_encoders
        self._done = 0

    def measure(self) -> CostModel:
        engines: dict[str, EngineCosts] = {}
        for name, bench in self._benches.items():
            self._report(f"engine {name}")
            try:
                engines[name] = bench.measure(self._time.engine_s)
            except EngineError as error:
                raise EngineError(f"engine {name} cannot be calibrated: {error}") from error
        encode_s: dict[str, float] = {}
        if self._encoder is not None:
            self._report("vision encoder")
            encode_s[ENCODER] = self._encoder.measure(self._time.encoder_s)
        slowdowns = self._measure_slowdowns(engines, encode_s.get(ENCODER, 0.0))
        for bench in self._benches.values():
            bench.clear()
        return CostModel(engines, encode_s, slowdowns)

    def _measure_slowdowns(
        self, engines: Mapping[str, EngineCosts], encode_s: float
    ) -> dict[tuple[Busy, Busy], float]:
        names, pair_s = list(engines), self._time.pair_s
        found: dict[tuple[Busy, Busy], float] = {}
        if len(names) < 2 and self._encoder is None:
            return found
        loads = {name: self._benches[name].loads(engines[name]) for name in names}
        pairs = PairBench(self._talk, engines, loads, self._encoder, encode_s)
        for name in names:
            pairs.measure_alone(name, pair_s / 8)
        for one, other in combinations(names, 2):
            self._report(f"engines {one} and {other}")
            found |= pairs.measure_engines(one, other, pair_s)
        if self._encoder is not None:
            for name in names:
                self._report(f"engine {name} and the vision encoder")
                found |= pairs.measure_encoder(name, pair_s)
        return found

    def _report(self, what: str) -> None:
        self._progress(f"measuring {what}", self._done / self._parts)
        self._done += 1


def calibration_key(config: RuntimeConfig, slots: EngineSlots, encoder: Encoder) -> dict[str, Any]:
    """All that would change the costs of a runtime whose engines are started."""
    language = config.profile.language
    return {
        "model": language.sha256 or sha256_file(language.file),
        "context_tokens": language.context_tokens,
        "encoder": {
            "identity": encoder.identity.hex(),
            "n_tokens": encoder.n_tokens,
            "backend": encoder.backend,
            "n_threads": config.vision.n_threads,
        },
        "engines": [_engine_key(slots, name) for name in slots.names],
        "machine": _machine_key(),
    }


def _engine_key(slots: EngineSlots, name: str) -> dict[str, Any]:
    config, engine = slots[name].config, slots.engine(name)
    return {
        "name": config.name,
        "device": config.device,
        "n_threads": config.threads,
        "cpus": list(config.cpus),
        "cells": engine.n_cells,
        "cell_bytes": slots.cell_bytes(name),
        "batching": engine.batching,
        "kv_type": config.kv_type,
        "exact": config.exact,
        "max_parallel": config.max_parallel,
        "chunk_tokens": config.chunk_tokens,
        "transfer_tokens": config.transfer_tokens,
        "repack": config.repack,
    }


def _machine_key() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "llama_cpp_python": _version("llama-cpp-python"),
        "onnxruntime": _version("onnxruntime"),
        "devices": [f"{info.name}: {info.description}" for info in list_devices()],
    }


def _processor() -> str:
    """Its name where the kernel tells it, as on x86; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # built by hand
        return "unknown"
