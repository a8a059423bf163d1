"""Which engine computes the frames of a stream."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_situations import SLOW, USUAL, costs, engine, running

from edge_vlm_ros.planning.costs import CostModel, RowCost
from edge_vlm_ros.planning.ingestion import ingest_engine
from edge_vlm_ros.planning.state import EngineState, PlanningState, StreamState

TWO = costs(gpu=USUAL, cpu=USUAL)
MIXED = costs(gpu=USUAL, cpu=SLOW)
BOTH_WAYS = frozenset({("gpu", "cpu"), ("cpu", "gpu")})


def _stream(name: str, on: str, history: int = 1000, ordered: int = 0) -> StreamState:
    return StreamState(name, on, 1.0, 50, history + ordered, ordered, {on: history})


def _decide(
    engines: tuple[EngineState, ...],
    streams: tuple[StreamState, ...],
    model: CostModel,
    importable: frozenset[tuple[str, str]] = BOTH_WAYS,
) -> dict[str, str]:
    """The engine of every stream, decided one after the other as its next frame comes."""
    for stream in streams:
        now = PlanningState(engines, streams, importable)
        chosen = ingest_engine(now, stream.name, model)
        streams = tuple(
            replace(s, ingest_engine=chosen) if s.name == stream.name else s for s in streams
        )
    return {s.name: s.ingest_engine for s in streams}


def test_a_steady_low_rate_stays() -> None:
    streams = (_stream("one", "gpu"), _stream("two", "gpu"))
    assert _decide((engine("gpu"), engine("cpu")), streams, TWO) == {"one": "gpu", "two": "gpu"}


def test_a_burst_of_two_streams_spreads_to_an_idle_engine() -> None:
    # 4000 tokens are ordered of the first: 0.464 s. The second, with 300, would wait for them as
    # they take turns; elsewhere it begins at once, after 28 ms for its history.
    streams = (_stream("one", "gpu", ordered=4000), _stream("two", "gpu", ordered=300))
    gpu = engine("gpu", ingest_tokens=4300, ingest_history_tokens=1000)
    engines = _decide((gpu, engine("cpu")), streams, TWO)
    assert "cpu" in engines.values()


@pytest.mark.parametrize(
    ("tokens", "chosen"), [(260, "gpu"), (600, "gpu"), (900, "cpu")], ids=["move", "gain", "gone"]
)
def test_others_that_are_ahead_must_be_worth_a_move(tokens: int, chosen: str) -> None:
    # A frame takes 6 ms, moving 1000 tokens 28 ms, counted twice: 62 ms on the other engine.
    # Here 31 + 6 ms with 260 tokens ahead, 70 + 6 ms with 600 (better, but not 1.5 times),
    # 105 + 6 ms with 900.
    gpu = engine("gpu", ingest_tokens=tokens)
    now = PlanningState((gpu, engine("cpu")), (_stream("one", "gpu"),), BOTH_WAYS)
    assert ingest_engine(now, "one", TWO) == chosen


@pytest.mark.parametrize(("slower", "chosen"), [(1.9, "cpu"), (2.1, "gpu")])
def test_a_stream_that_begins_takes_an_idle_engine_unless_it_is_much_slower(
    slower: float, chosen: str
) -> None:
    """Two streams that are behind on the faster engine take twice as long as one."""
    cost = RowCost(USUAL.prefill.fixed_s * slower, USUAL.prefill.row_s * slower, 0.0)
    model = costs(gpu=USUAL, cpu=replace(USUAL, prefill=cost))
    begun, new = _stream("one", "gpu"), _stream("two", "gpu", history=0)
    now = PlanningState((engine("gpu"), engine("cpu")), (begun, new), BOTH_WAYS)
    assert ingest_engine(now, "two", model) == chosen


def test_what_is_ordered_already_would_have_to_be_computed_there_too() -> None:
    # 1500 tokens of its own: 174 ms here as there.
    gpu = engine("gpu", ingest_tokens=1500)
    now = PlanningState((gpu, engine("cpu")), (_stream("one", "gpu", ordered=1500),), BOTH_WAYS)
    assert ingest_engine(now, "one", TWO) == "gpu"


def test_an_engine_without_cells_for_the_history_is_no_choice() -> None:
    gpu = engine("gpu", ingest_tokens=1500)
    now = PlanningState((gpu, engine("cpu", free_cells=999)), (_stream("one", "gpu"),), BOTH_WAYS)
    assert ingest_engine(now, "one", TWO) == "gpu"


def test_a_slow_engine_is_no_help() -> None:
    streams = (_stream("one", "gpu", ordered=200), _stream("two", "gpu", ordered=200))
    gpu = engine("gpu", ingest_tokens=400, ingest_history_tokens=1000)
    assert set(_decide((gpu, engine("cpu")), streams, MIXED).values()) == {"gpu"}


@pytest.mark.parametrize(("slower", "chosen"), [(1.5, "cpu"), (1.9, "gpu")])
def test_a_camera_leaves_a_slow_engine_when_the_other_has_time(slower: float, chosen: str) -> None:
    # A frame takes 0.52 s, on its engine 0.78 or 0.99 s; its history moves in 28 ms, counted twice.
    model = costs(
        gpu=replace(USUAL, prefill=RowCost(0.02, 0.01, 0.0)),
        cpu=replace(USUAL, prefill=RowCost(0.02 * slower, 0.01 * slower, 0.0)),
    )
    streams = (_stream("one", "gpu"), _stream("two", "cpu"))
    found = _decide((engine("gpu"), engine("cpu")), streams, model)
    assert found == {"one": "gpu", "two": chosen}


def test_new_streams_are_spread_over_equal_engines() -> None:
    streams = tuple(StreamState(name, "gpu", 1.0, 50, 0) for name in ("one", "two"))
    assert sorted(_decide((engine("gpu"), engine("cpu")), streams, TWO).values()) == ["cpu", "gpu"]


def test_an_engine_that_only_answers_loses_its_stream() -> None:
    # A tenth of the time is left for frames: 300 tokens of 35 ms take 0.35 s there.
    gpu = engine("gpu", ingest_share=0.1, answers=running(500, 500, 500, 500), ingest_tokens=300)
    streams = (_stream("one", "gpu", history=1000, ordered=300),)
    assert _decide((gpu, engine("cpu")), streams, TWO) == {"one": "cpu"}


def test_answers_that_wait_for_the_history_do_not_drive_it_away() -> None:
    # The same, but nothing runs yet: the frames have all the time of the engine until then.
    waiting = tuple(replace(answer, ready_in_s=0.1) for answer in running(500, 500, 500, 500))
    gpu = engine("gpu", ingest_share=0.1, answers=waiting, ingest_tokens=300)
    streams = (_stream("one", "gpu", history=1000, ordered=300),)
    assert _decide((gpu, engine("cpu")), streams, TWO) == {"one": "gpu"}


def test_a_history_that_cannot_be_moved_is_not_computed_again_for_little() -> None:
    # 4000 tokens take 0.46 s on the other engine, the 300 tokens of others ahead here 35 ms.
    streams = (_stream("one", "gpu", history=4000),)
    gpu = engine("gpu", ingest_tokens=300, ingest_history_tokens=4000)
    assert _decide((gpu, engine("cpu")), streams, TWO, frozenset()) == {"one": "gpu"}


def test_a_stream_whose_engine_is_lost_goes_to_another() -> None:
    streams = (_stream("one", "gpu"),)
    assert _decide((engine("cpu"),), streams, TWO) == {"one": "cpu"}


@pytest.mark.parametrize("period_s", [0.02, 0.05, 0.5])
def test_it_does_not_flap_and_no_stream_starves(period_s: float) -> None:
    """Two streams with equal frames on two equal engines for 200 frames each: each engine computes
    what it is given, a stream that moves takes its history along. After the beginning nothing
    moves, and what is ordered stays bounded as long as both engines together keep up."""
    on = {"one": "gpu", "two": "gpu"}
    backlog = {"gpu": 0.0, "cpu": 0.0}
    history, moves, worst = 1000, [], 0.0
    frame_s = USUAL.prefill_s(50, 1000, 64)
    for step in range(200):
        for name in on:
            engines = tuple(
                engine(e, ingest_tokens=int(50 * backlog[e] / frame_s), ingest_history_tokens=1000)
                for e in backlog
            )
            # What is ordered on an engine is divided among its streams.
            streams = tuple(
                StreamState(
                    n, e, 1 / period_s, 50, history,
                    int(50 * backlog[e] / frame_s) // list(on.values()).count(e), {e: history},
                )
                for n, e in on.items()
            )  # fmt: skip
            chosen = ingest_engine(PlanningState(engines, streams, BOTH_WAYS), name, TWO)
            if chosen != on[name]:
                moves.append(step)
                on[name] = chosen
            backlog[on[name]] += frame_s
            worst = max(worst, backlog[on[name]])
        backlog = {e: max(0.0, s - period_s) for e, s in backlog.items()}
    assert len(moves) <= 2, moves
    assert worst <= 20 * frame_s
