"""Whole workloads under every policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import ENCODER, CostModel, RowCost
from edge_vlm_ros.simulation.profile import Profile, load_profile
from edge_vlm_ros.simulation.report import verdict
from edge_vlm_ros.simulation.result import SimulationResult, percentile
from edge_vlm_ros.simulation.settings import Limits
from edge_vlm_ros.simulation.simulator import Simulation, simulate
from edge_vlm_ros.simulation.workload import Workload, burst, live

PROFILES = Path(__file__).resolve().parents[2] / "config" / "profiles"
POLICIES = (
    "sdep",
    "single:cpu",
    "batched:cpu",
    "single:gpu",
    "idle_first",
    "isolated",
    "round_robin",
    "serial:cpu",
)
ALL_AT_ONCE = Limits(max_pending_frames=8, max_pending_questions=8)
BUSY = live(streams=2, fps=0.25, questions_per_minute=6, duration_s=120, answer_tokens=24, seed=3)


@pytest.fixture(scope="module")
def board() -> Profile:
    return load_profile(PROFILES / "qcs6490.yaml")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("workload", "limits"),
    [(BUSY, Limits()), (burst(answer_tokens=32), ALL_AT_ONCE)],
    ids=["live", "burst"],
)
def test_every_question_ends(
    board: Profile, policy: str, workload: Workload, limits: Limits
) -> None:
    result = simulate(board, workload, policy, limits)
    assert len(result.answers) + len(result.rejected) == len(workload.questions)
    assert result.answers
    wanted = {question.number: question for question in workload.questions}
    for answer in result.answers:
        assert answer.finish_reason in ("stop", "length")
        assert answer.generated_tokens == wanted[answer.number].answer_tokens
        assert 0.0 < answer.ttft_s <= answer.total_s
    assert len(result.ingestion_lag_s) == result.frames - result.dropped_frames
    for name, steps in result.timelines.items():
        assert 0.0 <= result.utilisation(name) <= 1.0
        for before, after in zip(steps, steps[1:], strict=False):
            assert before.started + before.seconds <= after.started + 1e-9, name


@pytest.mark.parametrize("policy", ["sdep", "idle_first"])
def test_equal_runs_are_equal(board: Profile, policy: str) -> None:
    assert simulate(board, BUSY, policy) == simulate(board, BUSY, policy)


def test_the_seed_decides_the_workload() -> None:
    def draw(seed: int) -> Workload:
        return live(streams=2, fps=1, questions_per_minute=30, duration_s=60, seed=seed)

    assert draw(1) == draw(1) != draw(2)
    assert len(draw(1).frames) == 120
    assert all(1.0 < question.at < 60.0 for question in draw(1).questions)


def test_no_more_frames_than_are_encoded(board: Profile) -> None:
    """A frame takes at least ``encode_s``; what comes beyond that is lost, and said to be."""
    (encode_s,) = board.costs.encode_s.values()
    workload = live(streams=2, fps=4, questions_per_minute=0, duration_s=60)
    result = simulate(board, workload, "single:gpu")
    kept = result.frames - result.dropped_frames
    assert 0 < kept <= result.end_s / encode_s + 1
    assert result.dropped_frames > 0


def test_faster_engines_answer_sooner(board: Profile) -> None:
    costs = board.costs
    faster = CostModel(costs.engines, {ENCODER: costs.encode_s[ENCODER] / 4}, costs.slowdowns)
    fast_board = Profile(
        board.name, board.description, board.model, board.engines, board.encoder, faster
    )
    results: list[SimulationResult] = [
        simulate(profile, burst(), "single:cpu", ALL_AT_ONCE) for profile in (board, fast_board)
    ]
    assert results[1].end_s <= results[0].end_s


def test_an_unknown_policy_is_refused(board: Profile) -> None:
    with pytest.raises(ValueError, match="sdep"):
        simulate(board, BUSY, "best_guess")


def test_percentile_is_a_value_that_was_there() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, p) for p in (0, 25, 50, 95, 100)] == [1.0, 1.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("number", ["fps", "questions_per_minute", "duration_s"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0])
def test_workloads_that_make_no_sense_are_refused(number: str, value: float) -> None:
    numbers = {"fps": 1.0, "questions_per_minute": 6.0, "duration_s": 10.0, number: value}
    with pytest.raises(ValueError, match="a live workload needs"):
        live(streams=1, **numbers)


def test_refused_questions_are_told_with_their_reason(board: Profile) -> None:
    workload = live(streams=1, fps=1, questions_per_minute=30, duration_s=20, prompt_tokens=100_000)
    result = simulate(board, workload, "sdep")
    assert set(result.rejected) == {"question_too_long"}
    assert "are refused: question_too_long" in "\n".join(verdict(result, board, workload))


@pytest.mark.parametrize(("device", "equal"), [("rpc", True), ("vulkan:0", False)])
def test_answers_move_between_processors_only(board: Profile, device: str, equal: bool) -> None:
    """Other devices round differently: there an answer would not equal its serial reference."""
    cpu, gpu = board.engines
    both = replace(board, engines=(cpu, replace(gpu, device=device)))
    slots = Simulation(both, BUSY, "sdep", Limits())._coordinator.slots
    assert slots.are_equal(cpu.name, gpu.name) is slots.are_equal(gpu.name, cpu.name) is equal


def test_the_engine_that_is_done_first_goes_on_with_the_frames_of_the_other(board: Profile) -> None:
    """Half as fast an engine reads one of two cameras: it does not read it to the end, and all is
    done sooner than if it did."""
    cpu, gpu = (engine.name for engine in board.engines)
    fast = replace(board.costs.engines[gpu], decode=board.costs.engines[cpu].decode)
    slow = replace(
        fast,
        prefill=RowCost(2 * fast.prefill.fixed_s, 2 * fast.prefill.row_s, 0.0),
        decode=fast.decode.times(2.0),
    )
    costs = CostModel({cpu: fast, gpu: slow}, dict.fromkeys(board.costs.encode_s, 0.01))
    two = replace(board, costs=costs)

    def rows(result: SimulationResult, engine: str) -> int:
        steps = result.timelines[engine]
        return sum(step.rows for step in steps if step.activity is Activity.INGEST)

    sdep, isolated = (
        simulate(two, burst(), policy, ALL_AT_ONCE) for policy in ("sdep", "isolated")
    )
    assert rows(sdep, gpu) < 0.8 * rows(isolated, gpu)
    assert rows(sdep, cpu) > rows(isolated, cpu)
    assert max(sdep.total_s) < 0.8 * max(isolated.total_s)
