"""The policies that SDEP is compared with."""

from __future__ import annotations

import pytest
from planning_situations import (
    SLOW,
    USUAL,
    costs,
    engine,
    policy,
    question,
    running,
    state,
    way,
)

from edge_vlm_ros.planning.policies import POLICIES, make_policy

MIXED = costs(gpu=USUAL, cpu=SLOW)
ENGINES = ("gpu", "cpu")
ALL = ("sdep", "single:cpu", "batched:cpu", "idle_first", "isolated", "round_robin")
HELD = {"gpu": 1000}


def test_every_policy_is_made_by_its_name() -> None:
    assert {text.partition(":")[0] for text in ALL} == {p.partition(":")[0] for p in POLICIES}
    for text in ALL:
        assert policy(text, *ENGINES).name == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("best", "sdep"),
        ("", "sdep"),
        ("single", "gpu, cpu"),
        ("single:npu", "'npu'.*gpu, cpu"),
        ("batched:", "gpu, cpu"),
        ("sdep:gpu", "idle_first"),
    ],
)
def test_what_is_no_policy_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_policy(text, ENGINES, ("cam",), "completion")


@pytest.mark.parametrize("text", ALL)
def test_every_choice_has_foreseen_times(text: str) -> None:
    plan = policy(text, *ENGINES).plan(state(engine("gpu"), engine("cpu")), question(HELD), MIXED)
    assert plan is not None
    assert plan.policy == text
    assert plan.chosen in plan.alternatives
    assert 0.0 < plan.chosen.first_token_s < plan.chosen.finished_s
    assert plan.reason


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("asked", [{"engine": "cpu"}, {"engine": "gpu", "prefill_engine": "cpu"}])
def test_every_policy_does_what_the_question_asks_for(text: str, asked: dict[str, str]) -> None:
    now = state(engine("gpu"), engine("cpu"))
    plan = policy(text, *ENGINES).plan(now, question(HELD, **asked), MIXED)
    assert plan is not None
    assert plan.chosen.decode_engine == asked["engine"]
    if text != "sdep" or "prefill_engine" in asked:  # SDEP may prefill elsewhere and hand off
        assert plan.chosen.prefill_engine == asked.get("prefill_engine", asked["engine"])


@pytest.mark.parametrize("text", ALL)
def test_with_one_engine_left_every_policy_uses_it(text: str) -> None:
    now, made = state(engine("gpu")), policy(text, *ENGINES)
    for _ in range(3):
        plan = made.plan(now, question(HELD, engine="cpu"), MIXED)
        assert way(plan) == ("local", "gpu", "gpu")
    assert made.ingest_engine(now, "cam", MIXED) == "gpu"


def test_single_has_one_answer_at_a_time_and_batched_more() -> None:
    free = state(engine("gpu"), engine("cpu"))
    busy = state(engine("gpu"), engine("cpu", answers=running(10)))
    single, batched = policy("single:cpu", *ENGINES), policy("batched:cpu", *ENGINES)
    assert way(single.plan(free, question(HELD), MIXED))[1:] == ("cpu", "cpu")
    assert single.plan(busy, question(HELD), MIXED) is None
    assert way(batched.plan(busy, question(HELD), MIXED))[1:] == ("cpu", "cpu")
    assert single.ingest_engine(free, "cam", MIXED) == "cpu"
    assert batched.ingest_engine(free, "cam", MIXED) == "cpu"


def test_single_waits_for_the_engine_that_is_asked_for_only() -> None:
    single, asked = policy("single:cpu", *ENGINES), question(HELD, engine="gpu")
    busy = state(engine("gpu"), engine("cpu", answers=running(10)))
    assert way(single.plan(busy, asked, MIXED))[2] == "gpu"
    other = state(engine("gpu", answers=running(10)), engine("cpu"))
    assert single.plan(other, asked, MIXED) is None


def test_idle_first_takes_whatever_has_nothing_to_do() -> None:
    made = policy("idle_first", *ENGINES)
    gpu, cpu = engine("gpu", answers=running(2)), engine("cpu")
    # The slow engine, though the other is free in 22 ms and holds the history.
    assert way(made.plan(state(gpu, cpu), question(HELD), MIXED)) == ("import", "cpu", "cpu")
    assert way(made.plan(state(engine("gpu"), cpu), question(HELD), MIXED))[2] == "gpu"
    busy = engine("cpu", answers=running(2))
    assert made.plan(state(gpu, busy), question(HELD), MIXED) is None
    assert made.ingest_engine(state(gpu, cpu, ingest="gpu"), "cam", MIXED) == "gpu"


def test_isolated_keeps_each_stream_on_its_engine() -> None:
    made = make_policy("isolated", ENGINES, ("cam", "door", "yard"), "completion")
    now = state(engine("gpu", answers=running(9, 9)), engine("cpu"))
    homes = [made.ingest_engine(now, stream, MIXED) for stream in ("cam", "door", "yard")]
    assert homes == ["gpu", "cpu", "gpu"]
    assert way(made.plan(now, question(HELD), MIXED))[1:] == ("gpu", "gpu")
    elsewhere = make_policy("isolated", ("cpu", "gpu"), ("cam",), "completion")
    assert way(elsewhere.plan(now, question(HELD), MIXED))[1:] == ("cpu", "cpu")


def test_round_robin_deals_in_turn_and_leaves_out_what_does_not_work() -> None:
    made = policy("round_robin", "gpu", "cpu", "npu")
    model = costs(gpu=USUAL, cpu=SLOW, npu=USUAL)
    now = state(engine("gpu"), engine("cpu"), engine("npu"))
    dealt = [way(made.plan(now, question(HELD), model))[2] for _ in range(4)]
    assert dealt == ["gpu", "cpu", "npu", "gpu"]
    two = state(engine("gpu"), engine("npu"))
    assert [way(made.plan(two, question(HELD), model))[2] for _ in range(3)] == [
        "npu",
        "gpu",
        "npu",
    ]
    # A question that names its engine takes nobody's turn.
    made.plan(now, question(HELD, engine="gpu"), model)
    assert way(made.plan(now, question(HELD), model))[2] == "cpu"
