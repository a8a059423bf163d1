"""Situations worked out by hand: what is to be chosen, and why.

Costs are in planning_situations.py: the usual question takes ALONE_S = 0.542 s on an idle usual
engine (3 ms of prefill, 49 decode steps of 11 ms), and moving its 1000 tokens 28 ms.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_situations import (
    ALONE_S,
    MOVE,
    SLOW,
    USUAL,
    costs,
    engine,
    planned,
    policy,
    question,
    running,
    state,
    way,
)

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.comparison import NO_CELLS, Comparison
from edge_vlm_ros.planning.costs import CostModel, EngineCosts, MoveCost, RowCost, even_batches
from edge_vlm_ros.planning.plan import Alternative
from edge_vlm_ros.planning.sdep import Sdep
from edge_vlm_ros.planning.state import AnswerLoad, Held, UnplacedQuestion

TWO = costs(gpu=USUAL, cpu=USUAL)
MIXED = costs(gpu=USUAL, cpu=SLOW)


def _one(found: list[Alternative], *wanted: str) -> Alternative:
    (alternative,) = [a for a in found if (a.path, a.prefill_engine, a.decode_engine) == wanted]
    return alternative


# ---------------------------------------------------------------- where the history is
def test_an_idle_engine_that_holds_the_history_answers() -> None:
    plan = planned(state(engine("gpu"), engine("cpu")), question({"gpu": 1000}), TWO)
    assert way(plan) == ("local", "gpu", "gpu")
    assert plan is not None
    assert plan.chosen.finished_s == pytest.approx(ALONE_S)
    assert plan.chosen.first_token_s == pytest.approx(0.003)


def test_an_answer_shares_its_engine_with_frames() -> None:
    # 1000 tokens of another stream take 0.116 s. At a share of one half they and the answer go at
    # half speed until they are done: the answer is 0.116 s late, and they are as well.
    gpu = engine("gpu", ingest_share=0.5, ingest_tokens=1000)
    plan = planned(state(gpu), question({"gpu": 1000}), costs(gpu=USUAL))
    assert plan is not None
    assert plan.chosen.first_token_s == pytest.approx(2 * 0.003)
    assert plan.chosen.finished_s == pytest.approx(ALONE_S + 0.116)
    assert plan.chosen.ingest_s == pytest.approx(0.116)


def test_long_prefix_on_a_busy_engine_and_an_equal_idle_one() -> None:
    # In turns with three others each of 49 tokens takes 4 x 11 ms: 2.2 s. Moving takes 28 ms.
    gpu = engine("gpu", batching=False, answers=running(100, 100, 100))
    plan = planned(state(gpu, engine("cpu")), question({"gpu": 1000}), TWO)
    assert way(plan) == ("import", "cpu", "cpu")
    assert plan is not None
    assert ALONE_S + 0.028 <= plan.chosen.finished_s < 0.65


def test_a_running_batch_is_joined_rather_than_a_slow_engine_used() -> None:
    # Three running answers: 49 x 14 ms = 0.69 s, and 3 x 49 x 1 ms of delay for the others.
    # On the idle slow engine: 84 ms + 49 x 30 ms = 1.55 s, besides the import.
    gpu = engine("gpu", answers=running(100, 100, 100))
    plan = planned(state(gpu, engine("cpu")), question({"gpu": 1000}), MIXED)
    assert way(plan) == ("local", "gpu", "gpu")
    assert plan is not None
    assert plan.chosen.finished_s == pytest.approx(0.003 + 49 * 0.014, abs=0.03)
    assert plan.chosen.others_s == pytest.approx(3 * 49 * 0.001, abs=0.06)


@pytest.mark.parametrize(
    ("tokens", "chosen"), [(5.0, ("local", "gpu", "gpu")), (400.0, ("import", "cpu", "cpu"))]
)
def test_a_big_import_pays_for_a_long_answer_only(
    tokens: float, chosen: tuple[str, str, str]
) -> None:
    # 40,000 tokens are 400 MB in 157 ranges: 2 x (0.4 + 0.157) = 1.1 s. In turns with two others
    # 4 tokens take 4 x 33 ms = 0.13 s and delay the others by 2 x 44 ms, but 399 tokens take 13 s.
    gpu = engine("gpu", batching=False, answers=running(500, 500, history=40_000))
    asked = question(
        {"gpu": 40_000}, history_tokens=40_000, expected_tokens=tokens, may_hand_off=False
    )
    assert way(planned(state(gpu, engine("cpu")), asked, TWO)) == chosen


def test_what_is_computing_is_waited_for_when_copying_it_takes_longer() -> None:
    # 64 tokens are left: 7 ms. The other engine could only import after that.
    gpu = engine("gpu", ingest_tokens=64, ingest_history_tokens=936)
    asked = question({"gpu": Held(936, 1000)})
    plan = planned(state(gpu, engine("cpu")), asked, TWO)
    assert way(plan) == ("local", "gpu", "gpu")
    assert plan is not None
    assert plan.chosen.context_s == pytest.approx(0.001 + 64 * 0.0001)


def test_a_frame_that_is_not_encoded_gives_a_busy_engine_time() -> None:
    # The running answer has 30 tokens in turns: 0.33 s. At once another engine is better; when the
    # frame comes in 2 s, the engine that holds the history is idle, and nothing needs to be moved.
    busy = state(engine("gpu", batching=False, answers=running(30)), engine("cpu"))
    now = question({"gpu": 1000}, may_hand_off=False)
    later = question({"gpu": 950}, encoded_in_s=2.0, may_hand_off=False)
    assert way(planned(busy, now, TWO)) == ("import", "cpu", "cpu")
    plan = planned(busy, later, TWO)
    assert way(plan) == ("local", "gpu", "gpu")
    assert plan is not None
    assert plan.chosen.first_token_s >= 2.0
    assert plan.chosen.finished_s == pytest.approx(2.0 + 0.006 + ALONE_S, abs=0.02)


def test_a_delta_is_imported_rather_than_computed() -> None:
    # 100 tokens are 1 MB: 2 + 2 ms. Computing them on the slow engine takes 2 x 4 + 400 ms.
    asked = question({"gpu": 1000, "cpu": 900}, engine="cpu", may_hand_off=False)
    plan = planned(state(engine("gpu"), engine("cpu")), asked, MIXED)
    assert way(plan) == ("import", "cpu", "cpu")
    assert plan is not None
    replay = _one(list(plan.alternatives), "replay", "cpu", "cpu")
    assert plan.chosen.context_s == pytest.approx(0.004, abs=1e-3)
    assert replay.context_s == pytest.approx(0.408)


def test_a_delta_is_cheaper_than_all_of_it() -> None:
    two = state(engine("gpu"), engine("cpu"))
    all_of_it = Comparison(two, question({"gpu": 1000}), TWO).alternatives({"cpu"}, {"cpu"})
    delta = Comparison(two, question({"gpu": 1000, "cpu": 900}), TWO).alternatives({"cpu"}, {"cpu"})
    seconds = [_one(found, "import", "cpu", "cpu").context_s for found in (all_of_it, delta)]
    assert seconds == [pytest.approx(0.028), pytest.approx(0.004)]


def test_a_little_is_computed_rather_than_moved_over_a_slow_link() -> None:
    # 10 tokens are 100 KB: 0.1 s each way at 1 MB/s. Computing them takes 2 ms.
    link = MoveCost(0.001, 1e-6)
    thin = EngineCosts(USUAL.prefill, USUAL.decode, link, link)
    asked = question({"gpu": 1000, "cpu": 990}, engine="cpu", may_hand_off=False)
    plan = planned(state(engine("gpu"), engine("cpu")), asked, costs(gpu=thin, cpu=thin))
    assert way(plan) == ("replay", "cpu", "cpu")


def test_what_lies_in_host_memory_is_imported_when_no_engine_has_it() -> None:
    # 14 ms against computing 1000 tokens on the slow engine: 4 s.
    asked = question({"cpu": Held(cached=1000)})
    plan = planned(state(engine("cpu")), asked, costs(cpu=SLOW))
    assert way(plan) == ("import", "cpu", "cpu")
    assert plan is not None
    assert plan.chosen.context_s == pytest.approx(0.014)


def test_the_source_that_has_it_is_taken_rather_than_one_that_is_computing_it() -> None:
    # ``a`` ingests and has 1000 tokens to compute (0.116 s), ``b`` has them already.
    now = state(engine("a", ingest_tokens=1000), engine("b"), engine("c"))
    model = costs(a=USUAL, b=USUAL, c=USUAL)
    asked = question({"a": Held(0, 1000), "b": 1000})
    found = Comparison(now, asked, model).alternatives({"c"}, {"c"})
    assert _one(found, "import", "c", "c").context_s == pytest.approx(0.028)
    asked = question({"a": Held(0, 1000)})
    found = Comparison(now, asked, model).alternatives({"c"}, {"c"})
    assert _one(found, "import", "c", "c").context_s >= 0.116 + 0.028


# ---------------------------------------------------------------- what is impossible
def test_without_a_way_to_import_all_is_computed_again() -> None:
    asked = question({"gpu": 1000}, engine="cpu", may_hand_off=False)
    plan = planned(state(engine("gpu"), engine("cpu"), importable=False), asked, TWO)
    assert way(plan) == ("replay", "cpu", "cpu")
    assert plan is not None
    assert _one(list(plan.alternatives), "import", "cpu", "cpu").blocked
    assert _one(list(plan.alternatives), "local", "cpu", "cpu").blocked


def test_an_engine_with_too_few_cells_is_left_out() -> None:
    # Otherwise the import would win by far, as above.
    gpu = engine("gpu", batching=False, answers=running(100, 100, 100))
    plan = planned(state(gpu, engine("cpu", free_cells=999)), question({"gpu": 1000}), TWO)
    assert way(plan) == ("local", "gpu", "gpu")
    assert plan is not None
    assert _one(list(plan.alternatives), "import", "cpu", "cpu").blocked == NO_CELLS


def test_where_cells_will_become_free_is_better_than_nowhere() -> None:
    plan = planned(state(engine("gpu", free_cells=10)), question(), costs(gpu=USUAL))
    assert plan is not None
    assert plan.chosen.blocked == NO_CELLS


# ---------------------------------------------------------------- engines beside each other
@pytest.mark.parametrize(
    ("factor", "chosen"), [(1.0, ("import", "cpu", "cpu")), (3.0, ("local", "gpu", "gpu"))]
)
def test_an_engine_that_is_slow_beside_the_other(
    factor: float, chosen: tuple[str, str, str]
) -> None:
    # Joining three others in turns takes 2.2 s and delays them by 3 x 0.54 s. Idle engine beside
    # them: 0.57 s; at a third of its speed 1.6 s, and it makes the three (3.3 s each) three times
    # slower for as long.
    gpu, cpu = ("gpu", Activity.DECODE), ("cpu", Activity.DECODE)
    model = costs({(gpu, cpu): factor, (cpu, gpu): factor}, gpu=USUAL, cpu=USUAL)
    busy = engine("gpu", batching=False, answers=running(100, 100, 100))
    asked = question({"gpu": 1000}, may_hand_off=False)
    assert way(planned(state(busy, engine("cpu")), asked, model)) == chosen


FAST_PREFILL = EngineCosts(RowCost(0.001, 0.0001, 0.0), even_batches(0.1, 0.01, 0.0), MOVE, MOVE)
FAST_DECODE = EngineCosts(RowCost(0.004, 0.02, 0.0), even_batches(0.01, 0.01, 0.0), MOVE, MOVE)


@pytest.mark.parametrize(
    ("prompt", "chosen"),
    [(200, ("local", "npu", "cpu")), (1, ("local", "cpu", "cpu"))],
)
def test_handoff_pays_for_a_long_prompt_only(prompt: int, chosen: tuple[str, str, str]) -> None:
    # As an NPU beside a CPU: 200 tokens are prefilled in 24 ms, moved in 6 ms and decoded in
    # 49 x 20 ms; the CPU alone takes 4.0 s for the prompt, the NPU alone 5.4 s for the answer.
    # One token of prompt takes the CPU 24 ms, and 49 steps as well: nothing is worth a move.
    asked = question({"npu": 1000, "cpu": 1000}, prompt_tokens=prompt)
    model = costs(npu=FAST_PREFILL, cpu=FAST_DECODE)
    plan = planned(state(engine("npu"), engine("cpu")), asked, model)
    assert way(plan) == chosen
    if prompt == 200:
        assert plan is not None
        assert plan.chosen.first_token_s == pytest.approx(4 * 0.001 + 200 * 0.0001)
        assert plan.chosen.finished_s == pytest.approx(0.024 + 0.006 + 49 * 0.02, abs=0.03)


def test_the_first_token_and_the_end_may_want_different_engines() -> None:
    asked = question({"npu": 1000, "cpu": 1000}, prompt_tokens=100, may_hand_off=False)
    model, now = costs(npu=FAST_PREFILL, cpu=FAST_DECODE), state(engine("npu"), engine("cpu"))
    # npu: 12 ms and 49 x 110 ms = 5.4 s. cpu: 2.0 s and 49 x 20 ms = 3.0 s.
    assert way(planned(now, asked, model, "first_token")) == ("local", "npu", "npu")
    assert way(planned(now, asked, model, "completion")) == ("local", "cpu", "cpu")


# ---------------------------------------------------------------- waiting and staying
def test_behind_the_next_two_a_question_waits_for_a_place_where_it_is_best_off() -> None:
    asked, enough = question({"gpu": 1000}), running(5, 5, 5, 5, 5, 5)  # four of them run
    nearly, full = (engine("gpu", answers=enough[:n]) for n in (5, 6))
    assert way(planned(state(nearly, engine("cpu")), asked, MIXED)) == ("local", "gpu", "gpu")
    for other in (engine("cpu"), engine("cpu", answers=enough)):
        assert planned(state(full, other), asked, MIXED) is None


def test_nobody_waits_for_a_full_engine_to_be_handed_off_to() -> None:
    """That was foreseen with the prefill done meanwhile, and it would not be."""
    asked = question({"cpu": 1000, "gpu": 1000}, expected_tokens=200.0)
    model = costs(
        gpu=replace(USUAL, prefill=SLOW.prefill), cpu=replace(SLOW, prefill=USUAL.prefill)
    )
    free = planned(state(engine("gpu"), engine("cpu")), asked, model)
    assert way(free) == ("local", "cpu", "gpu")
    now = state(engine("gpu", answers=running(40, 40, 40, 40)), engine("cpu"))
    assert not Sdep("completion").best(now, asked, model).is_handoff


def test_an_idle_engine_is_better_than_a_long_wait() -> None:
    # Places become free after 500 x 14 ms = 7 s; the slow engine is done in 1.6 s.
    full = engine("gpu", answers=running(500, 500, 500, 500))
    plan = planned(state(full, engine("cpu")), question({"gpu": 1000}, may_hand_off=False), MIXED)
    assert way(plan) == ("import", "cpu", "cpu")


def test_a_single_engine_and_one_that_is_asked_for_queue_by_themselves() -> None:
    full = engine("gpu", answers=running(5, 5, 5, 5))
    assert way(planned(state(full), question({"gpu": 1000}), TWO)) == ("local", "gpu", "gpu")
    asked = question({"gpu": 1000}, engine="gpu")
    assert way(planned(state(full, engine("cpu")), asked, TWO))[2] == "gpu"


@pytest.mark.parametrize(("tokens", "engine_name"), [(2.0, "gpu"), (10.0, "cpu")])
def test_nothing_is_moved_for_a_few_percent(tokens: float, engine_name: str) -> None:
    # In turns with an answer of 2 tokens: 0.542 + 0.022 s and 11 ms or so of delay for the other,
    # against 0.57 s and some waiting for steps of the source. With 10 tokens: 0.65 and 0.1 s.
    gpu = engine("gpu", batching=False, answers=running(tokens))
    asked = question({"gpu": 1000}, may_hand_off=False)
    assert way(planned(state(gpu, engine("cpu")), asked, TWO))[2] == engine_name


# ---------------------------------------------------------------- what is asked for
def test_what_the_question_asks_for_is_kept() -> None:
    now = state(engine("gpu"), engine("cpu"))
    held = {"gpu": 1000}
    assert way(planned(now, question(held, engine="cpu"), MIXED))[2] == "cpu"
    asked = question(held, engine="gpu", prefill_engine="cpu")
    assert way(planned(now, asked, MIXED))[1:] == ("cpu", "gpu")
    asked = question(held, engine="cpu", path="replay", may_hand_off=False)
    assert way(planned(now, asked, MIXED)) == ("replay", "cpu", "cpu")


@pytest.mark.parametrize("path", ["", "local", "import", "replay"])
@pytest.mark.parametrize("prefill", ["", "gpu", "cpu"])
@pytest.mark.parametrize("decode", ["", "gpu", "cpu"])
def test_there_is_a_plan_whatever_is_asked_for(path: str, prefill: str, decode: str) -> None:
    now = state(engine("gpu"), engine("cpu"))
    asked = question({"gpu": 1000}, engine=decode, prefill_engine=prefill, path=path)
    plan = planned(now, asked, MIXED)
    assert plan is not None
    assert decode in ("", plan.chosen.decode_engine)
    assert prefill in ("", plan.chosen.prefill_engine)


# ---------------------------------------------------------------- load that lasts
def test_questions_go_where_the_share_is_not_used_up() -> None:
    # A question takes 3 ms + 49 x 14 / 4 ms = 0.17 s of an engine: 5.7 a second. At 5 a second
    # equal engines get half each; gpu has had all of them.
    gpu = engine("gpu", answers=running(10), routed=1.0)
    rates = {"question_rate_hz": 5.0, "prompt_tokens": 20.0, "answer_tokens": 50.0}
    asked = question({"gpu": 1000, "cpu": 1000}, may_hand_off=False)
    now = state(gpu, engine("cpu"), **rates)
    plan = planned(now, asked, TWO)
    assert way(plan)[2] == "cpu"
    assert plan is not None
    assert _one(list(plan.alternatives), "local", "gpu", "gpu").share_s > 0.0
    assert plan.chosen.share_s == 0.0


def test_shares_do_not_count_while_load_is_light() -> None:
    gpu = engine("gpu", routed=1.0)
    rates = {"question_rate_hz": 0.5, "prompt_tokens": 20.0, "answer_tokens": 50.0}
    plan = planned(state(gpu, engine("cpu"), **rates), question({"gpu": 1000}), TWO)
    assert way(plan) == ("local", "gpu", "gpu")
    assert plan is not None
    assert not any(a.share_s for a in plan.alternatives)


# ---------------------------------------------------------------- questions that wait for frames
@pytest.mark.parametrize(
    ("engine_name", "chosen"),
    [("gpu", ("import", "cpu", "cpu")), ("cpu", ("local", "gpu", "gpu"))],
)
def test_those_that_wait_for_frames_are_expected_where_their_stream_is_ingested(
    engine_name: str, chosen: tuple[str, str, str]
) -> None:
    # Behind four others, of which each takes 0.7 s beside the other three, it would end after 1.2 s
    # on gpu, as soon as a place is free; on cpu 28 ms after ALONE_S.
    others = (UnplacedQuestion(engine_name, AnswerLoad(1000, 20, 50.0), 0),) * 4
    now = replace(state(engine("gpu"), engine("cpu")), unplaced=others)
    asked = question({"gpu": 1000}, may_hand_off=False)
    plan = planned(now, asked, TWO)
    assert way(plan) == chosen
    assert plan is not None
    if engine_name == "gpu":
        stays = _one(list(plan.alternatives), "local", "gpu", "gpu")
        assert stays.finished_s == pytest.approx(4 * 0.003 + 49 * 0.014 + ALONE_S, abs=0.02)


@pytest.mark.parametrize(("ingest_tokens", "frames"), [(10_000, 1), (0, 6)])
def test_those_that_wait_for_frames_begin_when_their_history_is_there(
    ingest_tokens: int, frames: int
) -> None:
    # 10,000 tokens take 1.16 s, in which an answer at its share of a half is done; six frames take
    # 1.2 s to encode.
    others = (UnplacedQuestion("gpu", AnswerLoad(1000, 20, 50.0), frames),) * 4
    gpu = engine("gpu", ingest_share=0.5, ingest_tokens=ingest_tokens)
    model = CostModel({"gpu": USUAL}, {"vision": 0.2})
    plan = planned(replace(state(gpu), unplaced=others), question({"gpu": 1000}), model)
    assert plan is not None
    times = 2 if ingest_tokens else 1
    assert plan.chosen.first_token_s == pytest.approx(times * 0.003)
    assert plan.chosen.finished_s == pytest.approx(times * ALONE_S)
    if frames == 6:
        assert plan.chosen.others_s == pytest.approx(0.0)


# ---------------------------------------------------------------- what counts
def test_completion_counts_the_first_token_and_the_end() -> None:
    one = Alternative("local", "gpu", "gpu", 0.5, 1.0, 10.0)
    all_of_it = replace(one, others_s=0.1, ingest_s=0.02, last_s=0.003, share_s=0.0004)
    assert one.score("completion") == 11.0
    assert one.score("first_token") == 1.0
    assert all_of_it.score("completion") == pytest.approx(11.1234)
    assert all_of_it.score("first_token") == pytest.approx(1.1234)


# ---------------------------------------------------------------- what is said
def test_the_reason_names_the_choice_and_the_next_best() -> None:
    gpu = engine("gpu", batching=False, answers=running(100, 100, 100))
    asked = question({"gpu": 1000}, may_hand_off=False)
    plan = planned(state(gpu, engine("cpu")), asked, TWO)
    assert plan is not None
    assert plan.reason.startswith(f"import on cpu: {plan.chosen.finished_s:.2f} s; ")
    assert "local on gpu would take" in plan.reason
    assert "3 answers" in plan.reason
    assert plan.chosen in plan.alternatives


def test_an_engine_that_does_not_work_is_not_insisted_on() -> None:
    now = state(engine("cpu"))
    asked = question({"cpu": 1000}, engine="gpu", prefill_engine="gpu")
    for text in ("sdep", "round_robin", "idle_first", "isolated", "single:gpu", "batched:gpu"):
        plan = policy(text, "gpu", "cpu").plan(now, asked, MIXED)
        assert way(plan) == ("local", "cpu", "cpu"), text
