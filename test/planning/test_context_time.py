"""When an engine can have a history, worked out by hand.

USUAL: 50 tokens are computed in 6 ms; 50 tokens (500 kB) are exported or imported in 1.5 ms.
"""

from __future__ import annotations

from typing import Any

import pytest
from planning_situations import USUAL, costs, engine, question, running, state

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.context_time import ContextTime, ContextTimes, busy_with
from edge_vlm_ros.planning.costs import CostModel
from edge_vlm_ros.planning.state import Held, PlanningState, QuestionState

TWO = costs(gpu=USUAL, cpu=USUAL)
STEP_S = 0.011


def times(
    name: str,
    now: PlanningState,
    asked: QuestionState,
    model: CostModel = TWO,
    answering_s: float = 100.0,
) -> dict[str, ContextTime]:
    found = ContextTimes(
        now, asked, model, busy_with(now), lambda e: answering_s, lambda e: STEP_S
    ).paths(now.engine(name), asked.path)
    return {context.path: context for context in found}


def two(cpu: dict[str, Any] | None = None, **gpu: Any) -> PlanningState:
    """``gpu`` ingests the stream."""
    return state(engine("gpu", **gpu), engine("cpu", **(cpu or {})))


def test_what_is_there_is_there() -> None:
    found = times("gpu", two(), question({"gpu": 1000}))
    assert found["local"] == ContextTime("local")
    assert found["import"].blocked and found["replay"].blocked


def test_the_ingest_engine_computes_what_is_ordered_and_what_is_not() -> None:
    # 50 tokens ordered and 50 not: 6 + 6 ms, of which the question causes the second.
    found = times("gpu", two(ingest_tokens=50), question({"gpu": Held(900, 950)}))
    assert found["local"].seconds == pytest.approx(0.012)
    assert found["local"].computed_s == pytest.approx(0.006)


def test_another_engine_has_no_local_way_unless_it_was_told_to_compute_it() -> None:
    assert times("cpu", two(), question({"cpu": 900}))["local"].blocked
    found = times("cpu", two({"ingest_tokens": 50}), question({"cpu": Held(950, 1000)}))
    assert found["local"].seconds == pytest.approx(0.006)


def test_a_frame_that_is_not_encoded_is_waited_for_while_the_rest_is_computed() -> None:
    # 50 tokens ordered take 6 ms of the second that encoding takes; then 6 ms for the frame.
    asked = question({"gpu": Held(900, 950)}, encoded_in_s=1.0)
    found = times("gpu", two(ingest_tokens=50), asked)
    assert found["local"].seconds == pytest.approx(1.006)
    # A backlog of 2000 tokens (0.232 s) is longer than 0.1 s of encoding.
    asked = question({"gpu": Held(900, 950)}, encoded_in_s=0.1)
    found = times("gpu", two(ingest_tokens=2000), asked)
    assert found["local"].seconds == pytest.approx(0.232 + 0.006)


def test_computing_beside_answers_takes_turns_with_their_steps_until_they_end() -> None:
    # A chunk of 50 tokens and a step: 6 + 11 ms. 128 tokens are two chunks of 7.4 ms and two steps.
    now = two(answers=running(1000))
    assert times("gpu", now, question({"gpu": 950}))["local"].seconds == pytest.approx(0.017)
    longer = times("gpu", now, question({"gpu": 872}))["local"]
    assert longer.seconds == pytest.approx(2 * (0.0074 + STEP_S))
    # With 5 ms of answering left both are done after 11 ms.
    soon = times("gpu", now, question({"gpu": 950}), answering_s=0.005)["local"]
    assert soon.seconds == pytest.approx(0.011)


def test_import_of_a_delta() -> None:
    found = times("cpu", two(), question({"gpu": 1000, "cpu": 950}))
    assert found["import"].seconds == pytest.approx(2 * 0.0015)
    assert found["import"].computed_s == 0.0
    assert found["replay"].seconds == pytest.approx(0.006)


def test_every_range_waits_for_steps_of_both_engines() -> None:
    # 512 tokens are two ranges: 2 x (2 x 1 + 5.12) ms, and 1.5 steps of each engine.
    now = two({"answers": running(100)}, answers=running(100))
    found = times("cpu", now, question({"gpu": 1000, "cpu": 488}))
    assert found["import"].seconds == pytest.approx(2 * 0.00712 + 3 * STEP_S)
    # Frames to be ingested go in between, too: as much again at a share of a half.
    now = two({"answers": running(100), "ingest_tokens": 50}, answers=running(100))
    found = times("cpu", now, question({"gpu": 1000, "cpu": 488}))
    assert found["import"].seconds == pytest.approx(2 * 0.00712 + 4.5 * STEP_S)


def test_transfers_ordered_before_go_first() -> None:
    now = two({"import_bytes": 3_000_000}, export_bytes=2_000_000)
    found = times("cpu", now, question({"gpu": 1000, "cpu": 950}))
    assert found["import"].seconds == pytest.approx(2 * 0.0015 + 0.005)
    # What another question has ordered is on its way already: 2 and 3 ms.
    found = times("cpu", now, question({"gpu": 1000, "cpu": Held(0, 1000)}))
    assert found["local"].seconds == pytest.approx(0.005)
    assert found["import"].blocked


def test_a_source_that_has_a_part_only() -> None:
    # gpu grows the stream: it computes the last 50 (6 ms), then all is moved, 4 ranges each.
    found = times("cpu", two(), question({"gpu": 950}))
    assert found["import"].seconds == pytest.approx(0.006 + 2 * 0.014)
    # A third engine has 950: moved in 13.5 + 13.5 ms, the rest is computed here in 6 ms.
    now = state(engine("npu"), engine("gpu"), engine("cpu"), ingest="npu")
    model = costs(gpu=USUAL, cpu=USUAL, npu=USUAL)
    found = times("cpu", now, question({"gpu": 950, "npu": Held(0, 0)}), model)
    assert found["import"].seconds == pytest.approx(2 * 0.0135 + 0.006)
    assert found["import"].computed_s == pytest.approx(0.006)


def test_host_memory_spares_the_export() -> None:
    now = state(engine("gpu"), engine("cpu"), importable=False)
    found = times("cpu", now, question({"gpu": 1000, "cpu": Held(900, 900, 950)}))
    assert found["import"].seconds == pytest.approx(0.0015 + 0.006)
    found = times("cpu", now, question({"gpu": 1000, "cpu": Held(950, 950, 950)}))
    assert found["import"].blocked


def test_slowdowns_count() -> None:
    gpu = ("gpu", Activity.DECODE)
    model = costs(
        {
            (("cpu", Activity.PREFILL), gpu): 2.0,
            (("cpu", Activity.IMPORT), gpu): 3.0,
            (("gpu", Activity.EXPORT), gpu): 9.0,  # an engine is not beside itself
        },
        gpu=USUAL,
        cpu=USUAL,
    )
    now = two(answers=running(100))
    found = times("cpu", now, question({"gpu": 1000, "cpu": 950}), model)
    assert found["replay"].seconds == pytest.approx(2.0 * 0.006)
    assert found["import"].seconds == pytest.approx(0.0015 + 0.5 * STEP_S + 3.0 * 0.0015)


def test_only_the_path_that_is_asked_for() -> None:
    assert set(times("cpu", two(), question({"gpu": 1000}, path="replay"))) == {"replay"}
