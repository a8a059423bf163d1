"""When an engine goes on with the frames of another stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planning_situations import CELL_BYTES, SLOW, USUAL, costs, engine, question, running

from edge_vlm_ros.planning.costs import CostModel, RowCost
from edge_vlm_ros.planning.plan import Alternative
from edge_vlm_ros.planning.policies import make_policy
from edge_vlm_ros.planning.sdep import Sdep
from edge_vlm_ros.planning.state import (
    EngineState,
    Held,
    PlanningState,
    QuestionState,
    StreamState,
)
from edge_vlm_ros.planning.takeover import MOST_QUESTIONS, stream_to_take_over

HALF = replace(USUAL, prefill=RowCost(0.002, 0.0002, 0.0))
"""Computes half as fast as the usual one; decodes as fast."""
MODEL = costs(fast=USUAL, slow=HALF)
BOTH_WAYS = frozenset({("fast", "slow"), ("slow", "fast")})
FRAMES = 4000
"""Tokens of each camera. The fast engine computes them in 0.464 s, the slow one in 0.928 s."""


def read() -> QuestionState:
    """About what the fast engine has just computed."""
    return question({"fast": FRAMES}, stream="read", history_tokens=FRAMES)


def behind(computed: int, stream: str = "behind", source: str = "slow") -> QuestionState:
    held = {source: Held(computed, FRAMES)}
    return question(held, stream=stream, history_tokens=FRAMES)


def at(
    computed: int,
    *,
    fast: EngineState | None = None,
    slow: EngineState | None = None,
    **stream: Any,
) -> PlanningState:
    """The fast engine is done, the slow one has computed so much."""
    left = FRAMES - computed
    values = {"frame_tokens": 50, "ordered_tokens": left, "held": {"slow": computed}, **stream}
    return PlanningState(
        (
            fast or engine("fast"),
            slow or engine("slow", ingest_tokens=left, ingest_history_tokens=computed),
        ),
        (
            StreamState("read", "fast", 0.0, 50, FRAMES, held={"fast": FRAMES}),
            StreamState("behind", "slow", 0.0, history_tokens=FRAMES, **values),
        ),
        BOTH_WAYS,
    )


def decide(
    now: PlanningState,
    *questions: QuestionState,
    model: CostModel = MODEL,
    by: str = "fast",
) -> str:
    sdep = Sdep("completion")

    def choose(then: PlanningState, asked: QuestionState) -> Alternative:
        return sdep.best(then, asked, model)

    return stream_to_take_over(now, questions, by, model, choose)


def test_a_fast_engine_goes_on_where_a_slow_one_is_half_way() -> None:
    # 2000 tokens are left: 0.46 s there; here 0.23 s, and 2000 tokens of KV, 2 * 28 ms.
    assert decide(at(2000), read(), behind(2000)) == "behind"


def test_it_does_so_for_those_who_wait_for_them_alone() -> None:
    assert decide(at(2000), behind(2000)) == "behind"


def test_nobody_waits() -> None:
    assert decide(at(2000), read()) == ""
    assert decide(at(2000)) == ""


def test_equal_engines_leave_each_other_alone() -> None:
    """Half a frame would be lost, and the history has to be moved."""
    model = costs(fast=USUAL, slow=USUAL)
    assert decide(at(2000), read(), behind(2000), model=model) == ""


def test_what_the_other_engine_has_nearly_done_counts() -> None:
    """Of a frame that takes half a second half is done: with small ones the same would pay."""
    asked = [behind(2000)] * 4
    assert decide(at(2000, frame_tokens=50), *asked) == "behind"
    assert decide(at(2000, frame_tokens=1990), *asked) == ""


def test_a_slow_engine_takes_nothing_over() -> None:
    streams = (
        StreamState("read", "slow", 0.0, 50, FRAMES, held={"slow": FRAMES}),
        StreamState("behind", "fast", 0.0, 50, FRAMES, 2000, {"fast": 2000}),
    )
    fast = engine("fast", ingest_tokens=2000, ingest_history_tokens=2000)
    now = PlanningState((fast, engine("slow")), streams, BOTH_WAYS)
    assert decide(now, behind(2000, source="fast"), by="slow") == ""


@pytest.mark.parametrize(("left", "chosen"), [(300, ""), (301, "behind")])
def test_the_frame_that_is_being_computed_is_waited_for(left: int, chosen: str) -> None:
    """A frame of 300 tokens. What is left beyond it is not much here, but moving costs nothing."""
    link = replace(USUAL, export=_free(), import_=_free())
    model = costs(fast=link, slow=replace(SLOW, export=_free(), import_=_free()))
    now = at(FRAMES - left, frame_tokens=300)
    assert decide(now, behind(FRAMES - left), model=model) == chosen


def test_answers_that_run_there_are_no_reason_to_wait_for_ever() -> None:
    """They take turns with frames that are awaited."""
    busy = engine("fast", answers=running(20, 20))
    assert decide(at(1000, fast=busy), behind(1000)) == "behind"


def test_an_engine_that_has_frames_of_its_own_does_not_look_at_others() -> None:
    assert decide(at(2000, fast=engine("fast", ingest_tokens=1)), behind(2000)) == ""


def test_nor_one_without_cells_for_the_history() -> None:
    """Frames displace nothing that is in use."""
    assert decide(at(2000, fast=engine("fast", spare_cells=FRAMES)), behind(2000)) == "behind"
    assert decide(at(2000, fast=engine("fast", spare_cells=FRAMES - 1)), behind(2000)) == ""
    # 100 tokens of it are there.
    now = at(2000, fast=engine("fast", spare_cells=FRAMES - 100), held={"slow": 2000, "fast": 100})
    assert decide(now, behind(2000)) == "behind"


def test_what_cannot_be_moved_stays() -> None:
    now = replace(at(2000), importable=frozenset({("fast", "slow")}))
    assert decide(now, behind(2000)) == ""


def test_a_stream_that_was_given_to_its_engine_stays() -> None:
    assert decide(at(2000, stays=True), behind(2000)) == ""


def test_with_very_many_questions_it_is_not_looked_at() -> None:
    assert decide(at(2000), *[behind(2000)] * MOST_QUESTIONS) == "behind"
    assert decide(at(2000), *[behind(2000)] * (MOST_QUESTIONS + 1)) == ""


def test_of_two_streams_the_one_is_taken_that_has_most_to_come() -> None:
    now = at(2000)
    slow = replace(now.engine("slow"), ingest_tokens=4500)
    other = replace(now.streams[1], name="other", ordered_tokens=2500, held={"slow": 1500})
    both = replace(now, engines=(now.engines[0], slow), streams=(*now.streams, other))
    assert decide(both, behind(2000), behind(1500, "other")) == "other"
    assert decide(both, behind(2000)) == "behind", "nobody waits for the other one"


@pytest.mark.parametrize(("left", "chosen"), [(420, ""), (440, "behind")])
def test_what_is_done_soon_is_waited_for(left: int, chosen: str) -> None:
    """420 tokens take 98 ms on the slow engine: 7 steps of 2 ms, and 0.2 ms each; 440 take 102."""
    model = costs(
        fast=replace(USUAL, export=_free(), import_=_free()),
        slow=replace(HALF, export=_free(), import_=_free()),
    )
    assert decide(at(FRAMES - left), behind(FRAMES - left), model=model) == chosen


def test_names_do_not_matter() -> None:
    names = {"fast": "zz", "slow": "aa"}
    now = at(2000)
    renamed = PlanningState(
        tuple(replace(e, name=names[e.name]) for e in reversed(now.engines)),
        tuple(
            replace(
                s,
                ingest_engine=names[s.ingest_engine],
                held={names[name]: n for name, n in s.held.items()},
            )
            for s in reversed(now.streams)
        ),
        frozenset((names[a], names[b]) for a, b in now.importable),
    )
    asked = question({"aa": Held(2000, FRAMES)}, stream="behind", history_tokens=FRAMES)
    assert decide(renamed, asked, model=costs(zz=USUAL, aa=HALF), by="zz") == "behind"


def test_only_sdep_does_so() -> None:
    asked = [behind(2000)]
    for text, chosen in (
        ("sdep", "behind"),
        ("batched:fast", ""),
        ("idle_first", ""),
        ("isolated", ""),
        ("round_robin", ""),
    ):
        policy = make_policy(text, ("fast", "slow"), ("read", "behind"), "completion")
        assert policy.take_over(at(2000), asked, "fast", MODEL) == chosen
        assert policy.plans_again == (text == "sdep")


def test_the_moved_history_counts() -> None:
    """Through a link of 10 MB/s 1000 tokens take a second."""
    assert CELL_BYTES == 10_000
    slow_link = replace(HALF, export=replace(HALF.export, byte_s=1e-7))
    assert decide(at(1000), behind(1000)) == "behind"
    assert decide(at(1000), behind(1000), model=costs(fast=USUAL, slow=slow_link)) == ""


def _free() -> Any:
    return replace(USUAL.export, fixed_s=0.0, byte_s=0.0)
