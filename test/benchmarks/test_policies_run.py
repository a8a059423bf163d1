"""The policies benchmark carries a workload to a Runtime, and refuses figures of anything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.models import demo_model
from benchmarks.policies import Plan, measure_policies
from benchmarks.policies_results import Key, Results, Run
from benchmarks.policies_run import Carrier, Models, Settings, running
from benchmarks.policies_setup import Setup, endless_model
from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.model_profile import ModelProfile
from edge_vlm_ros.runtime import Runtime
from edge_vlm_ros.simulation.workload import Workload, burst

KEY = Key("one", "demo", "q8_0", "burst", 0.0, "batched:cpu", 1)
WORKLOAD = burst(streams=2, frames=2, questions=2, answer_tokens=6)
ENGINES = (EngineConfig(n_threads=1, max_parallel=4),)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelProfile]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield endless_model("demo").profile


def carry(
    profile: ModelProfile, workload: Workload, *, strictly: bool = False, grace_s: float = 0.0
) -> Run:
    settings = Settings(profile, workload.streams, (), "completion")
    models = Models(profile, ENGINES)
    try:
        with running(settings, ENGINES, "batched:cpu", models) as (runtime, witness):
            return Carrier(runtime, witness, workload).carry(KEY, grace_s, strictly=strictly)
    finally:
        models.free()


def test_every_answer_is_as_long_as_was_asked_for_and_every_frame_is_encoded(
    profile: ModelProfile,
) -> None:
    run = carry(profile, WORKLOAD)
    assert (run.tokens, run.frames, run.frames_dropped) == (24, 4, 0)
    assert run.answers == {"cpu": 4} and len(run.ttft_ms) == len(run.complete_ms) == 4
    assert max(run.complete_ms) <= 1e3 * run.total_s
    assert run.memory.node_rss >= run.memory.node_pss > 0 == run.memory.servers_rss


def test_strictly_nothing_overlaps_and_waiting_to_be_asked_counts(profile: ModelProfile) -> None:
    run = carry(profile, WORKLOAD, strictly=True)
    # One after the other: each question waits for all before it, from the beginning on.
    assert list(run.complete_ms) == sorted(run.complete_ms)
    pairs = zip(run.complete_ms, run.ttft_ms[1:], strict=False)
    assert all(ended <= began for ended, began in pairs)


def test_strictly_a_frame_is_computed_before_the_next_one_comes(
    profile: ModelProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending: list[int] = []
    add_frame = Runtime.add_frame

    def noted(runtime: Runtime, *frame: Any, **options: Any) -> None:
        pending.extend(runtime.stream_status(s).pending_frames for s in WORKLOAD.streams)
        add_frame(runtime, *frame, **options)

    monkeypatch.setattr(Runtime, "add_frame", noted)
    carry(profile, WORKLOAD, strictly=True)
    assert pending == [0] * 8
    pending.clear()
    carry(profile, WORKLOAD)
    assert any(pending)


def test_answers_that_take_too_long_are_cancelled_and_counted(profile: ModelProfile) -> None:
    long = burst(streams=2, frames=1, questions=20, answer_tokens=128)
    run = carry(profile, replace(long, duration_s=0.0), grace_s=0.1)
    assert run.unfinished + len(run.complete_ms) == 40 == len(run.ttft_ms)
    assert run.unfinished > 0


def test_a_model_that_ends_its_answers_is_refused() -> None:
    with pytest.raises(RuntimeError, match="ended with stop after"):
        carry(demo_model().profile, burst(streams=1, frames=1, questions=1, answer_tokens=128))


def test_models_are_loaded_once(profile: ModelProfile) -> None:
    models = Models(profile, ENGINES)
    try:
        vocabulary = models.vocabulary
        settings = Settings(profile, WORKLOAD.streams, (), "completion")
        for _ in range(2):
            with running(settings, ENGINES, "batched:cpu", models) as (runtime, witness):
                carrier = Carrier(runtime, witness, WORKLOAD)
                # Nothing is left of the Runtime before.
                assert carrier.carry(KEY, 0.0).paths == {"local": 4, "import": 0, "replay": 0}
        assert models.vocabulary is vocabulary and vocabulary.handle
    finally:
        models.free()


def test_live_runs_that_are_added_later_are_at_the_same_loads(
    profile: ModelProfile, tmp_path: Path
) -> None:
    told: list[str] = []
    plan = Plan(
        Setup("one", ENGINES, ()), "demo", "q8_0", ("batched:cpu",), ("live",),
        runs=1, live_runs=1, live_s=0.2, limit_s=60.0, objective="completion",
    )  # fmt: skip
    for runs in (1, 2):  # as two calls of the command
        results = Results(tmp_path / "runs.jsonl")
        measure_policies(endless_model("demo"), replace(plan, live_runs=runs), results, told.append)
        assert len(results.runs) == 3 * runs
    assert sum(text.startswith("capacity of cpu") for text in told) == 1
