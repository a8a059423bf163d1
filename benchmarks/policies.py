"""All policies on the same engines, with the same frames and questions.

Burst: two streams, eight frames and four questions each, handed over at once; every answer has
exactly 128 tokens. Live: frames at a fixed rate and Poisson questions, at loads relative to what
the best single engine can do, which is measured first. ``serial`` is what is done without a
runtime: encode a frame, compute it, then the next; then one question after the other, all on the
best single engine. Every run has a Runtime of its own; only models stay loaded.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.planning.costs import CostModel
from edge_vlm_ros.planning.plan import Objective
from edge_vlm_ros.runtime import Runtime
from edge_vlm_ros.simulation.workload import Asked, Frame, Workload, burst, live

from .models import BenchmarkModel
from .policies_report import SERIAL, WIDE, line
from .policies_results import Key, Results, Run
from .policies_run import MOST_TOKENS, Carrier, Models, Settings, Witness, running, with_digest
from .policies_setup import MAX_PARALLEL, ModelName, Setup

STREAMS, FRAMES, QUESTIONS = 2, 8, 4
LIVE_TOKENS = 32
"""Of an answer on average; from half as many to one and a half times as many."""
LOADS = (0.4, 0.8, 1.4)
"""Low, medium and saturating, of the best single engine with batching."""
FRAMES_PART = 0.2
"""Of the best single engine's time, which live frames take."""
_MOST_FPS = 10.0
_SEED = 4

WorkloadName = Literal["burst", "live"]
WORKLOADS: tuple[WorkloadName, ...] = ("burst", "live")


@dataclass(frozen=True)
class Plan:
    """What is measured. After ``limit_s`` no run begins any more. Every run writes a trace into the
    folder ``traces``, if there is one."""

    setup: Setup
    model_name: ModelName
    kv_type: str
    policies: tuple[str, ...]
    workloads: tuple[WorkloadName, ...]
    runs: int
    live_runs: int
    live_s: float
    limit_s: float
    objective: Objective
    traces: Path | None = None


def all_policies(setup: Setup) -> tuple[str, ...]:
    """The most important first."""
    names = [engine.name for engine in setup.engines]
    policies = ["sdep", *(f"batched:{name}" for name in names), "isolated", SERIAL, "round_robin"]
    policies += ["idle_first", *(f"single:{name}" for name in names)]
    return (*policies, WIDE) if setup.wide is not None else tuple(policies)


def measure_policies(
    model: BenchmarkModel, plan: Plan, results: Results, tell: Callable[[str], None]
) -> None:
    """Add all runs to ``results`` that are not there; ``tell`` hears of each."""
    profile = with_digest(model.profile)
    streams = burst(streams=STREAMS).streams
    settings = Settings(profile, streams, plan.setup.cpus, plan.objective)
    models = Models(profile, plan.setup.engines)
    try:
        bench = _Bench(settings, plan, models, results, tell)
        if "burst" in plan.workloads:
            bench.measure_burst()
        if "live" in plan.workloads:
            bench.measure_live()
    finally:
        models.free()


class _Bench:
    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        models: Models,
        results: Results,
        tell: Callable[[str], None],
    ) -> None:
        self._settings, self._plan, self._models = settings, plan, models
        self._results, self._tell = results, tell
        self._best = ""
        self._end = time.monotonic() + plan.limit_s

    def measure_burst(self) -> None:
        """Each policy once, in turns: forwards, then backwards."""
        workload = burst(
            streams=STREAMS, frames=FRAMES, questions=QUESTIONS, answer_tokens=MOST_TOKENS
        )
        for number in range(1, self._plan.runs + 1):
            for policy in _in_turns(self._plan.policies, number):
                self._one(self._key("burst", 0.0, policy, number), workload)

    def measure_live(self) -> None:
        """At each load every policy gets the same arrivals."""
        plan = self._plan
        policies = [p for p in plan.policies if p not in (SERIAL, WIDE)]
        wanted = [
            (number, load, policy)
            for number in range(1, plan.live_runs + 1)
            for load in LOADS
            for policy in _in_turns(policies, number)
        ]
        if all(self._key("live", load, policy, n) in self._results for n, load, policy in wanted):
            return
        questions_hz, frames_hz = self._capacity()
        for number, load, policy in wanted:
            workload = live(
                streams=STREAMS,
                fps=min(_MOST_FPS, FRAMES_PART * frames_hz / STREAMS),
                questions_per_minute=60.0 * load * (1.0 - FRAMES_PART) * questions_hz,
                duration_s=plan.live_s,
                answer_tokens=LIVE_TOKENS,
                seed=_SEED + number,
            )
            self._one(self._key("live", load, policy, number), workload)

    # ---------------------------------------------------------------- runs
    def _key(self, workload: str, load: float, policy: str, number: int) -> Key:
        plan = self._plan
        return Key(plan.setup.name, plan.model_name, plan.kv_type, workload, load, policy, number)

    def _one(self, key: Key, workload: Workload) -> None:
        if key in self._results or time.monotonic() > self._end:
            return
        try:
            run = self._carry(key, workload)
        except Exception as error:  # the other runs are worth having
            self._results.note(failed=key.policy, workload=key.workload, error=repr(error))
            self._tell(f"FAILED {key}: {error!r}\n{traceback.format_exc()}")
            return
        self._results.add(run)
        self._tell(line(run))

    def _carry(self, key: Key, workload: Workload) -> Run:
        engines, policy = self._engines(key.policy)
        with running(self._settings, engines, policy, self._models) as (runtime, witness):
            if key.policy == SERIAL:
                runtime.set_policy(f"single:{self._best_of(runtime)}", self._plan.objective)
            if self._plan.traces is not None:
                name = (
                    f"{key.workload}-{key.load:g}-{key.policy.replace(':', '-')}-{key.number}.json"
                )
                runtime.start_trace(str(self._plan.traces.absolute() / name))
            carrier = Carrier(runtime, witness, workload)
            grace_s = self._plan.live_s if key.workload == "live" else 0.0
            run = carrier.carry(key, grace_s, strictly=key.policy == SERIAL)
        lost = run.rejected or run.frames_dropped
        if key.workload == "burst" and (lost or run.frames != len(workload.frames)):
            raise RuntimeError(f"frames or questions were lost: {run}")
        return run

    def _engines(self, policy: str) -> tuple[Sequence[EngineConfig], str]:
        setup = self._plan.setup
        if policy == WIDE and setup.wide is not None:
            return (setup.wide,), f"batched:{setup.wide.name}"
        if policy == SERIAL:
            return setup.engines, f"single:{setup.engines[0].name}"
        return setup.engines, policy

    def _best_of(self, runtime: Runtime) -> str:
        """The engine that is expected to answer one question of a burst first."""
        if not self._best:
            costs, names = runtime.costs, [e.name for e in self._plan.setup.engines]
            self._best = min(names, key=lambda name: _alone_s(name, costs))
        return self._best

    # ---------------------------------------------------------------- capacity
    def _capacity(self) -> tuple[float, float]:
        """Questions a second, and frames a second, of the best single engine with batching;
        measured once for all runs of a file of results."""
        plan = self._plan
        of = plan.setup.name, plan.model_name, plan.kv_type
        known = self._results.capacity(*of)
        if known is not None:
            return known
        found: dict[str, tuple[float, float]] = {}
        for engine in self._plan.setup.engines:
            policy = f"batched:{engine.name}"
            with running(self._settings, self._plan.setup.engines, policy, self._models) as (
                runtime,
                witness,
            ):
                found[engine.name] = _saturated(runtime, witness)
            q, f = found[engine.name]
            self._tell(f"capacity of {engine.name}: {q:.2f} questions/s, {f:.2f} frames/s")
        best = max(found.values())
        self._results.add_capacity(*of, *best)
        return best


def _saturated(runtime: Runtime, witness: Witness) -> tuple[float, float]:
    """Frames first, then two full batches of questions at once."""
    names = runtime.stream_names
    key = Key("", "", "", "", 0.0, "", 0)
    frames = Workload(names, tuple(Frame(0.0, n) for _ in range(FRAMES) for n in names), 0.0)
    carrier = Carrier(runtime, witness, frames)
    began = time.monotonic()
    carrier.show_all()
    frames_hz = len(frames.items) / (time.monotonic() - began)
    n = 2 * MAX_PARALLEL
    items = (Asked(0.0, names[i % len(names)], i, 0, LIVE_TOKENS, LIVE_TOKENS) for i in range(n))
    run = Carrier(runtime, witness, Workload(names, tuple(items), 0.0)).carry(key, 0.0)
    return n / run.total_s, frames_hz


def _alone_s(engine: str, costs: CostModel) -> float:
    cost, tokens = costs.engines[engine], 50.0
    history = FRAMES * tokens
    return cost.prefill_s(history, 0.0, 64) + MOST_TOKENS * cost.decode.seconds(1, history)


def _in_turns(policies: Iterable[str], number: int) -> list[str]:
    order = list(policies)
    return order if number % 2 else order[::-1]


def describe(plan: Plan, model: BenchmarkModel) -> Sequence[str]:
    """What the figures are of, in words."""
    return (
        f"Model: {model.label}, {plan.kv_type} KV; every frame is encoded by "
        f"{model.profile.encoder.backends[0].file.name} in one thread",
        f"Engines: {plan.setup.describe()}; up to {MAX_PARALLEL} answers in a batch",
        f"Burst: {STREAMS} streams, {FRAMES} frames and {QUESTIONS} questions each, all at once, "
        f"{MOST_TOKENS} tokens an answer; a Runtime of its own for every run, models stay loaded",
        f"Live: frames take {100 * FRAMES_PART:.0f} % of the best single engine, Poisson questions "
        f"with {LIVE_TOKENS // 2} to {LIVE_TOKENS * 3 // 2} tokens an answer for "
        f"{plan.live_s:g} s at {', '.join(map(str, LOADS))} of what it can answer beside them",
        f"Objective of sdep: {plan.objective}",
    )
