"""Runtimes with the real demo model, closed after each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers import MODEL, Start, clip, demo_config, settle, show
from takeovers import TakesOver
from two_engines import TWO

from edge_vlm_ros.runtime import Runtime, RuntimeConfig, RuntimeListener
from tools.reference_loop import ReferenceLoop


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes active runtimes: takes what ``demo_config`` takes, or a whole configuration."""
    runtimes: list[Runtime] = []

    def make(
        *streams: Any,
        config: RuntimeConfig | None = None,
        listener: RuntimeListener | None = None,
        **settings: Any,
    ) -> Runtime:
        runtime = Runtime(config or demo_config(*streams, **settings), listener)
        runtime.load()
        runtimes.append(runtime)
        runtime.activate()
        return runtime

    yield make
    for runtime in runtimes:
        runtime.close()


@pytest.fixture
def runtime(start: Start) -> Runtime:
    """One active runtime with the stream ``table``."""
    return start()


@pytest.fixture(scope="session")
def reference() -> Iterator[ReferenceLoop]:
    """The bare loop over llama.cpp and ONNX Runtime."""
    loop = ReferenceLoop(MODEL / "lm.Q8_0.gguf", MODEL / "vision.onnx")
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def alone() -> Iterator[Runtime]:
    """Answers one question at a time; it is reset between histories."""
    runtime = Runtime(demo_config())
    runtime.load()
    runtime.activate()
    yield runtime
    runtime.close()


@pytest.fixture
def two(start: Start) -> Runtime:
    """Two engines on the CPU; ``table`` has been shown six frames, which ``cpu`` holds."""
    runtime = start("table", "shelf", engines=TWO)
    show(runtime, "table", clip(1).frames(6))
    settle(runtime)
    return runtime


@pytest.fixture
def behind(start: Start) -> Runtime:
    """``table`` is ingested by ``second``, ``shelf`` by ``cpu``."""
    runtime = start("table", "shelf", engines=TWO)
    for stream, engine in (("table", "second"), ("shelf", "cpu")):
        runtime.move_ingestion(stream, engine)
        state = runtime._loaded().streams[stream]
        runtime._on_loop(lambda state=state: setattr(state, "pinned", False))
    settle(runtime)
    planner = runtime._loaded().planner
    planner.policy = TakesOver(planner.policy)
    return runtime
