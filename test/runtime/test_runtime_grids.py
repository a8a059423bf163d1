"""A model whose frames lie in a grid (M-RoPE), through the whole runtime."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import test_runtime_serial as serial
from grid_models import grid_model
from helpers import PATIENCE_S, Start, clip, demo_config, demo_profile, settle, show
from serial_reference import Committed
from two_engines import TWO

from edge_vlm_ros.model_profile import ModelProfile
from edge_vlm_ros.runtime import ConfigError, PlanningConfig, Runtime, RuntimeListener

STREAMS = serial.STREAMS


@pytest.fixture(scope="module")
def grid_profile(tmp_path_factory: pytest.TempPathFactory) -> ModelProfile:
    profile = demo_profile()
    path = tmp_path_factory.mktemp("models") / "qwen3vl.gguf"
    grid_model(profile.language.file, path, "qwen3vl")
    language = profile.language.model_copy(update={"file": path, "sha256": None})
    encoder = profile.encoder.model_copy(update={"grid": (7, 7)})
    return profile.model_copy(update={"language": language, "encoder": encoder})


@pytest.fixture
def start(grid_profile: ModelProfile) -> Iterator[Start]:
    runtimes: list[Runtime] = []

    def make(*streams: Any, listener: RuntimeListener | None = None, **settings: Any) -> Runtime:
        settings.setdefault("profile", grid_profile)
        runtime = Runtime(demo_config(*streams, **settings), listener)
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
    [("model", None, "say how the tokens of a frame lie"), ("profile", (7, 7), "has no M-RoPE")],
)
def test_a_profile_that_does_not_fit_the_model(
    start: Start, grid_profile: ModelProfile, grids_of: str, grid: Any, reason: str
) -> None:
    profile = grid_profile if grids_of == "model" else demo_profile()
    encoder = profile.encoder.model_copy(update={"grid": grid})
    with pytest.raises(ConfigError, match=reason):
        start(profile=profile.model_copy(update={"encoder": encoder}))
