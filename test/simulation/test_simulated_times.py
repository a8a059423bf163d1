"""Virtual times worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation_helpers import CELL_BYTES, FRAME_TOKENS, OPEN_TOKENS, machine, one_question

from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.planning.costs import ENCODER
from edge_vlm_ros.simulation.clock import VirtualClock
from edge_vlm_ros.simulation.events import EventQueue
from edge_vlm_ros.simulation.result import SimulationResult
from edge_vlm_ros.simulation.settings import Limits
from edge_vlm_ros.simulation.simulator import simulate
from edge_vlm_ros.simulation.workload import Asked, Frame, Workload

HISTORY = OPEN_TOKENS + FRAME_TOKENS


def _steps(result: SimulationResult, engine: str, *activities: Activity) -> list[StepRecord]:
    return [step for step in result.timelines[engine] if step.activity in activities]


def test_one_question_on_one_engine() -> None:
    result = simulate(machine("cpu"), one_question(), "single:cpu")
    opening = 0.25 + 2 / 16  # while the frame is being encoded
    encoded = 1.0
    # One step for the frame's embeddings and the tokens around them.
    published = encoded + 0.25 + (1 + 4 + 1) / 16
    first = published + 0.25 + 8 / 16
    (answer,) = result.answers
    assert result.ingestion_lag_s == (published,)
    assert answer.ttft_s == first
    assert answer.total_s == first + 2 * (0.5 + 1 / 8)
    assert (answer.finish_reason, answer.generated_tokens, answer.path) == ("length", 3, "local")
    assert result.timelines["cpu"][0].seconds == opening
    assert [step.started for step in result.timelines["npu"]] == [0.0]


def test_an_answer_that_ends_by_itself_takes_a_step_more() -> None:
    short = simulate(machine("cpu"), one_question(), "single:cpu").answers[0]
    ended = simulate(machine("cpu"), one_question(max_tokens=20), "single:cpu").answers[0]
    assert (ended.finish_reason, ended.generated_tokens) == ("stop", 3)
    assert ended.total_s == short.total_s + 0.5 + 1 / 8


def test_serially_nothing_overlaps() -> None:
    profile, workload = machine("cpu"), one_question(frames=3)
    serial, open_ = (simulate(profile, workload, f"{kind}:cpu") for kind in ("serial", "single"))
    steps = sorted(
        (step for steps in serial.timelines.values() for step in steps),
        key=lambda step: step.started,
    )
    frames = [step for step in steps if step.activity is Activity.ENCODE]
    assert len(frames) == 3
    for before, after in zip(steps[1:], steps[2:], strict=False):  # the opening is prepared ahead
        assert before.started + before.seconds <= after.started
    ingest_s = 0.625
    # Overlapped, a frame is computed while the next one is encoded, which takes longer.
    assert open_.ingestion_lag_s[-1] == 3 * 1.0 + ingest_s
    assert serial.ingestion_lag_s[-1] == 3 * (1.0 + ingest_s)
    # The question has come with the frames: its wait for them counts.
    assert serial.answers[0].ttft_s == 3 * (1.0 + ingest_s) + 0.75


def test_work_is_slowed_by_what_others_do() -> None:
    slow = {(("cpu", Activity.PREFILL), (ENCODER, Activity.ENCODE)): 2.0}
    workload = Workload(("table",), (Frame(0.0, "table"), Frame(0.0, "table")), 0.0)
    plain = simulate(machine("cpu", encode_s=4.0), workload, "single:cpu")
    slowed = simulate(machine("cpu", encode_s=4.0, slowdowns=slow), workload, "single:cpu")
    assert plain.ingestion_lag_s == (4.0 + 0.625, 8.0 + 0.625)
    # The first frame is computed beside the encoding of the second, the second beside nothing.
    assert slowed.ingestion_lag_s == (4.0 + 2 * 0.625, 8.0 + 0.625)


def test_what_is_computed_ahead_after_all_is_done_does_not_count() -> None:
    workload = one_question(frames=3)
    limits = Limits(max_frames=4, keep_frames=2, max_pending_frames=4)
    ahead = simulate(machine("cpu"), workload, "single:cpu", limits)
    (answer,) = ahead.answers
    assert ahead.end_s == answer.arrived + answer.total_s
    last = max(step.started + step.seconds for step in ahead.timelines["cpu"])
    assert last > ahead.end_s and ahead.utilisation("cpu") <= 1.0
    whole = simulate(machine("cpu"), workload, "single:cpu")
    assert (whole.end_s, whole.utilisation("cpu")) == (ahead.end_s, ahead.utilisation("cpu"))


def test_what_has_ended_slows_nobody() -> None:
    slow = {((ENCODER, Activity.ENCODE), ("cpu", Activity.PREFILL)): 2.0}
    workload = Workload(("table",), (Frame(0.0, "table"), Frame(0.0, "table")), 0.0)
    result = simulate(machine("cpu", slowdowns=slow), workload, "single:cpu")
    # The first frame is encoded beside the opening; the engine is idle when the second begins.
    assert [step.seconds for step in result.timelines["npu"]] == [2.0, 1.0]


def test_answers_of_one_engine_share_steps() -> None:
    frame, question = one_question().items
    assert isinstance(question, Asked)
    both = Workload(("table",), (frame, question, replace(question, number=1)), 0.0)
    result = simulate(machine("cpu"), both, "batched:cpu")
    shared = [step for step in _steps(result, "cpu", Activity.DECODE) if step.sequences == 2]
    assert shared and all(step.seconds == 0.5 + 2 / 8 for step in shared)
    alone = simulate(machine("cpu"), both, "single:cpu")
    assert all(step.sequences == 1 for step in _steps(alone, "cpu", Activity.DECODE))
    assert max(result.total_s) < max(alone.total_s)


def test_import_moves_the_history_and_takes_its_time() -> None:
    workload = one_question(engine="gpu", path="import")
    result = simulate(machine("cpu", "gpu"), workload, "single:cpu")
    (answer,) = result.answers
    assert (answer.engine, answer.path) == ("gpu", "import")
    exports = _steps(result, "cpu", Activity.EXPORT)
    imports = _steps(result, "gpu", Activity.IMPORT)
    assert sum(step.n_bytes for step in exports) == HISTORY * CELL_BYTES
    assert [step.n_bytes for step in imports] == [step.n_bytes for step in exports]
    assert not _steps(result, "gpu", Activity.INGEST)
    for step in (*exports, *imports):
        assert step.seconds == 1 / 8 + step.n_bytes / 2**14
    for moved_out, moved_in in zip(exports, imports, strict=True):
        assert moved_in.started == moved_out.started + moved_out.seconds
    assert answer.ttft_s == imports[-1].started + imports[-1].seconds + 0.75


def test_replay_computes_the_history_again() -> None:
    workload = one_question(engine="gpu", path="replay")
    result = simulate(machine("cpu", "gpu"), workload, "single:cpu")
    assert result.answers[0].engine == "gpu"
    assert sum(step.rows for step in _steps(result, "gpu", Activity.INGEST)) == HISTORY
    assert not _steps(result, "cpu", Activity.EXPORT)


def test_handoff_takes_the_question_along() -> None:
    workload = one_question(engine="cpu", prefill_engine="gpu")
    result = simulate(machine("cpu", "gpu"), workload, "single:cpu")
    (answer,) = result.answers
    assert (answer.prefill_engine, answer.engine) == ("gpu", "cpu")
    assert [step.rows for step in _steps(result, "gpu", Activity.PREFILL)] == [8]
    (handed,) = _steps(result, "cpu", Activity.IMPORT)
    assert handed.n_bytes == 8 * CELL_BYTES  # the first token is computed by whom it is handed to
    assert len(_steps(result, "cpu", Activity.DECODE)) == 2
    assert not _steps(result, "gpu", Activity.DECODE)


def test_time_does_not_go_back() -> None:
    clock = VirtualClock()
    clock.advance_to(2.0)
    with pytest.raises(ValueError, match=r"back from 2.0 s to 1.0 s"):
        clock.advance_to(1.0)


def test_actions_of_one_time_keep_their_order() -> None:
    events, done = EventQueue(), []
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        events.at(time, lambda name=name: done.append(name))
    while events.next_time is not None:
        events.pop()()
    assert done == ["a", "b", "c"]
