"""A model whose frames lie in a grid (M-RoPE), through the whole runtime."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from typing import Any

import helpers
import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
import test_runtime_serial as serial
import test_runtime_stress as stress
from grid_models import grid_model
from helpers import MODEL, PATIENCE_S, Start, clip, demo_config, demo_profile, settle, show
from numpy.typing import NDArray
from serial_reference import Committed
from two_engines import TWO

from edge_vlm_ros.history import Grid
from edge_vlm_ros.model_profile import ModelProfile
from edge_vlm_ros.runtime import (
    ConfigError,
    PlanningConfig,
    Runtime,
    RuntimeConfig,
    RuntimeListener,
)
from tools.reference_loop import ReferenceLoop

STREAMS = serial.STREAMS


@pytest.fixture(scope="module")
def grid_profile(tmp_path_factory: pytest.TempPathFactory) -> ModelProfile:
    profile = demo_profile()
    path = tmp_path_factory.mktemp("models") / "qwen3vl.gguf"
    grid_model(profile.language.file, path, "qwen3vl")
    language = profile.language.model_copy(update={"file": path, "sha256": None})
    encoder = profile.encoder.model_copy(update={"grid": Grid(7, 7)})
    return profile.model_copy(update={"language": language, "encoder": encoder})


@pytest.fixture
def start(grid_profile: ModelProfile) -> Iterator[Start]:
    runtimes: list[Runtime] = []

    def make(
        *streams: Any,
        config: RuntimeConfig | None = None,
        listener: RuntimeListener | None = None,
        **settings: Any,
    ) -> Runtime:
        settings.setdefault("profile", grid_profile)
        runtime = Runtime(config or demo_config(*streams, **settings), listener)
        runtimes.append(runtime)
        runtime.load()
        runtime.activate()
        return runtime

    yield make
    for runtime in runtimes:
        runtime.close()


@pytest.fixture(scope="module")
def alone(grid_profile: ModelProfile) -> Iterator[Runtime]:
    runtime = Runtime(demo_config(profile=grid_profile))
    runtime.load()
    runtime.activate()
    yield runtime
    runtime.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_interleaving(start: Start, alone: Runtime, seed: int) -> None:
    commits = Committed()
    runtime = start(*STREAMS, listener=commits)
    serial.interleave(runtime, alone, commits, random.Random(seed))


@pytest.mark.parametrize("policy", serial.POLICIES)
def test_random_interleaving_on_two_engines(start: Start, alone: Runtime, policy: str) -> None:
    planning, commits = PlanningConfig(policy=policy, calibration="never"), Committed()
    runtime = start(*STREAMS, engines=TWO, planning=planning, listener=commits)
    assert {probe.outcome for probe in runtime._parts.probes} == {"equal"}
    serial.interleave(runtime, alone, commits, random.Random(200))


def test_answers_while_the_history_is_rebuilt(start: Start, alone: Runtime) -> None:
    serial.test_answers_while_the_history_is_rebuilt(start, alone)


class GridReferenceLoop(ReferenceLoop):
    """The bare loop, with frames of a grid of 7 x 7."""

    def _eval_embeddings(self, embeddings: NDArray[np.float32]) -> None:
        n, side = len(embeddings), 7
        batch = llama.llama_batch_init(n, self.n_embd, 1)
        part = np.ascontiguousarray(embeddings, np.float32)
        ctypes.memmove(batch.embd, part.ctypes.data, part.nbytes)
        y, x = np.divmod(np.arange(n), side)
        start = self.n_past
        sections = np.concatenate((0 * y + start, y + start, x + start, 0 * y))
        positions = (llama.llama_pos * (4 * n))(*sections.tolist())
        batch.pos, batch.n_tokens = positions, n
        for row in range(n):
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, row == n - 1
        assert llama.llama_decode(self._context, batch) == 0
        self.n_past += side


@pytest.fixture(scope="module")
def reference(grid_profile: ModelProfile) -> Iterator[ReferenceLoop]:
    loop = GridReferenceLoop(grid_profile.language.file, MODEL / "vision.onnx")
    yield loop
    loop.close()


@pytest.fixture
def _as_demo(monkeypatch: pytest.MonkeyPatch, grid_profile: ModelProfile) -> None:
    monkeypatch.setattr(helpers, "demo_profile", lambda: grid_profile)


@pytest.mark.usefixtures("_as_demo")
@pytest.mark.parametrize("seed", range(3))
def test_random_use(start: Start, reference: ReferenceLoop, seed: int) -> None:
    """Also where computing fails within a frame."""
    stress.test_random_use(start, reference, seed)


@pytest.mark.usefixtures("_as_demo")
def test_questions_about_many_epochs_at_once(
    start: Start, reference: ReferenceLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    stress.test_questions_about_many_epochs_at_once(start, reference, monkeypatch)


def test_positions_of_a_history(start: Start) -> None:
    runtime = start("table")
    show(runtime, "table", clip(1).frames(3))
    settle(runtime)
    epoch = runtime._loaded().streams["table"].history.current
    frame, opening = epoch.items[1], epoch.items[0]
    assert (frame.n_tokens, frame.n_positions) == (49 + 3, 7 + 3)
    assert epoch.tokens(4) == opening.n_tokens + 3 * 52
    assert epoch.positions(4) == opening.n_tokens + 3 * 10
    result = runtime.ask("table", "What changed?").result(PATIENCE_S)
    assert result.error == "" and result.token_ids


@pytest.mark.parametrize(
    ("grids_of", "grid", "reason"),
    [
        ("model", None, "say how the tokens of a frame lie"),
        ("profile", Grid(7, 7), "has no M-RoPE"),
    ],
)
def test_a_profile_that_does_not_fit_the_model(
    start: Start, grid_profile: ModelProfile, grids_of: str, grid: Any, reason: str
) -> None:
    profile = grid_profile if grids_of == "model" else demo_profile()
    encoder = profile.encoder.model_copy(update={"grid": grid})
    with pytest.raises(ConfigError, match=reason):
        start(profile=profile.model_copy(update={"encoder": encoder}))
