"""Costs follow what steps really take, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest

from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.planning.costs import (
    Busy,
    CostModel,
    EngineCosts,
    MoveCost,
    RowCost,
    even_batches,
)
from edge_vlm_ros.planning.learning import MOST_SLOWDOWN, CostLearner
from edge_vlm_ros.planning.overlaps import HOLD_S
from edge_vlm_ros.planning.smoothing import RobustErrors

INGEST, PREFILL, DECODE = Activity.INGEST, Activity.PREFILL, Activity.DECODE
EXPORT, IMPORT, ENCODE = Activity.EXPORT, Activity.IMPORT, Activity.ENCODE
ENGINE = EngineCosts(
    RowCost(1e-3, 1e-4, 1e-7),
    even_batches(5e-3, 1e-3, 1e-6),
    MoveCost(1e-3, 1e-9),
    MoveCost(2e-3, 2e-9),
)
NAMES = ("one", "two")


def base(slowdowns: Mapping[tuple[Busy, Busy], float] | None = None) -> CostModel:
    return CostModel({name: ENGINE for name in NAMES}, {"vision": 0.02}, slowdowns or {})


def alone_s(activity: Activity, rows: int, history: int, n_bytes: int) -> float:
    if activity is ENCODE:
        return 0.02
    if activity in (EXPORT, IMPORT):
        return (ENGINE.export if activity is EXPORT else ENGINE.import_).seconds(n_bytes)
    return (ENGINE.decode if activity is DECODE else ENGINE.prefill).seconds(rows, history)


def steps(
    activity: Activity, n: int, factor: float, start: float = 0.0, gap: float = 0.0
) -> list[StepRecord]:
    """Steps one after the other that take ``factor`` times what the base says, in many shapes."""
    made, at = [], start
    for i in range(n):
        rows, history, n_bytes = 1 + i % 4, 100 * (i % 7), 10_000 * (1 + i % 5)
        seconds = factor * alone_s(activity, rows, history, n_bytes)
        made.append(StepRecord(activity, at, seconds, rows, 1, history, n_bytes))
        at += seconds + gap
    return made


def end(made: list[StepRecord]) -> float:
    return made[-1].started + made[-1].seconds


def later(at: float) -> dict[str, list[StepRecord]]:
    """A step of each so late that everything before ``at`` is settled."""
    return {
        name: [StepRecord(EXPORT, at + 1 + HOLD_S, 1e-3, 1, 1, 0, 0)] for name in (*NAMES, "vision")
    }


def feed(learner: CostLearner, batches: Iterable[Mapping[str, list[StepRecord]]]) -> None:
    last = 0.0
    for batch in batches:
        learner.observe(batch)
        last = max([last, *(end(made) for made in batch.values() if made)])
    learner.observe(later(last))


def test_without_steps_the_model_is_the_base() -> None:
    learner = CostLearner(base())
    learner.observe({})
    learner.observe({"one": [], "stranger": steps(DECODE, 3, 1.0)})
    assert learner.model() == base() and learner.errors() == {}


@pytest.mark.parametrize("activity", [INGEST, PREFILL, DECODE, EXPORT, IMPORT])
def test_each_kind_of_step_has_its_own_factor(activity: Activity) -> None:
    learner = CostLearner(base())
    feed(learner, [{"one": steps(activity, 200, 3.0)}])
    model = learner.model()
    found, other = model.engines["one"], model.engines["two"]
    at = {
        "prefill": found.prefill.seconds(3, 200) / ENGINE.prefill.seconds(3, 200),
        "decode": found.decode.seconds(3, 200) / ENGINE.decode.seconds(3, 200),
        "export": found.export.seconds(5000) / ENGINE.export.seconds(5000),
        "import": found.import_.seconds(5000) / ENGINE.import_.seconds(5000),
    }
    changed = at.pop("prefill" if activity is INGEST else activity.value)
    assert changed == pytest.approx(3.0, rel=0.02)
    # The steps that settle everything else are exports.
    at.pop("export", None)
    assert all(factor == pytest.approx(1.0) for factor in at.values())
    assert other.decode == ENGINE.decode and other.prefill == ENGINE.prefill


def test_an_encoder_has_a_factor_too() -> None:
    learner = CostLearner(base())
    feed(learner, [{"vision": steps(ENCODE, 200, 1.5)}])
    assert learner.model().encode_s["vision"] == pytest.approx(0.03, rel=0.02)


def test_outliers_hardly_count_but_a_lasting_change_does() -> None:
    rng = random.Random(2)
    learner = CostLearner(base())
    calm = [f for _ in range(300) for f in [rng.uniform(0.95, 1.05)]]
    calm[::25] = [30.0] * len(calm[::25])
    made, at = [], 0.0
    for factor in calm:
        made += steps(DECODE, 1, factor, at)
        at = end(made)
    feed(learner, [{"one": made}])
    assert learner.model().engines["one"].decode.seconds(1, 0) == pytest.approx(6e-3, rel=0.1)
    feed(learner, [{"one": steps(DECODE, 300, 2.0, at + 100)}])
    assert learner.model().engines["one"].decode.seconds(1, 0) == pytest.approx(1.2e-2, rel=0.05)


def test_a_single_first_step_moves_little() -> None:
    learner = CostLearner(base())
    feed(learner, [{"one": steps(DECODE, 1, 2.0)}])
    assert 6e-3 < learner.model().engines["one"].decode.seconds(1, 0) < 1.1 * 6e-3


def test_errors_are_those_of_the_prediction_before_the_step() -> None:
    learner = CostLearner(base())
    feed(learner, [{"one": steps(DECODE, 1, 2.0)}])
    error = learner.errors()["one", DECODE]
    assert error.n == 1 and error.error == error.mean == pytest.approx(1.0)
    feed(learner, [{"one": steps(DECODE, 500, 2.0, 100.0)}])
    error = learner.errors()["one", DECODE]
    assert error.error == pytest.approx(0.0, abs=0.01) and error.factor == pytest.approx(2.0, 0.02)
    # A prediction that is too high counts the same.
    learner = CostLearner(base())
    feed(learner, [{"one": steps(INGEST, 1, 0.5)}])
    assert learner.errors()["one", PREFILL].error == pytest.approx(1.0)


def beside(
    factor: float, n: int = 200, start: float = 0.0
) -> tuple[list[StepRecord], list[StepRecord]]:
    """Steps of one engine while another, undisturbed, ingests."""
    disturbed = steps(DECODE, n, factor, start)
    company: list[StepRecord] = []
    while not company or end(company) < end(disturbed):
        company += steps(INGEST, 20, 1.0, end(company) if company else start)
    return disturbed, company


def by_turns(factor: float, start: float = 0.0) -> tuple[list[StepRecord], list[StepRecord], float]:
    """Steps of one engine, ten alone and ten while another ingests, and so on; and their end."""
    made: list[StepRecord] = []
    others: list[StepRecord] = []
    for _ in range(20):
        made += steps(DECODE, 10, 1.0, start)
        disturbed, company = beside(factor, 10, end(made))
        made, others, start = made + disturbed, others + company, end(company)
    return made, others, start


def decode_beside_prefill(learner: CostLearner) -> float:
    """How much longer than by the base a step of one is expected to take."""
    model = learner.model()
    alone = model.engines["one"].decode.seconds(1, 0) / ENGINE.decode.seconds(1, 0)
    return alone * model.slowdown("one", DECODE, [("two", PREFILL)])


def test_a_slowdown_is_learnt_from_steps_beside_others_and_alone() -> None:
    learner = CostLearner(base())
    made, company, at = by_turns(1.6)
    feed(learner, [{"one": made, "two": company}])
    model = learner.model()
    assert model.slowdown("one", DECODE, [("two", PREFILL)]) == pytest.approx(1.6, rel=0.05)
    assert model.slowdown("one", DECODE, [("two", DECODE)]) == 1.0
    assert model.slowdown("two", PREFILL, [("one", DECODE)]) == pytest.approx(1.0, abs=0.02)
    assert model.engines["one"].decode.seconds(1, 0) == pytest.approx(6e-3, rel=0.03)
    # And unlearnt; but company makes nobody faster.
    made, company, _ = by_turns(0.7, at + 100.0)
    feed(learner, [{"one": made, "two": company}])
    assert learner.model().slowdown("one", DECODE, [("two", PREFILL)]) == 1.0


def test_who_is_never_alone_is_slowed_by_company_more_than_by_itself() -> None:
    """Both would explain it; costs are measured alone at start."""
    learner = CostLearner(base())
    disturbed, company = beside(1.6)
    feed(learner, [{"one": disturbed, "two": company}])
    assert decode_beside_prefill(learner) == pytest.approx(1.6, rel=0.02)
    assert learner.model().slowdown("one", DECODE, [("two", PREFILL)]) > 1.3
    assert learner.model().engines["one"].decode.seconds(1, 0) < 1.2 * 6e-3


def test_company_may_be_told_of_later() -> None:
    """Every engine's steps come when that one is asked."""
    learner, at_once = CostLearner(base()), CostLearner(base())
    disturbed, company = beside(1.6)
    feed(at_once, [{"one": disturbed, "two": company}])
    batches: list[dict[str, list[StepRecord]]] = []
    for i in range(0, len(disturbed), 10):
        batches.append({"one": disturbed[i : i + 10]})
    assert end(disturbed) - disturbed[0].started < HOLD_S
    batches.append({"two": company})
    feed(learner, batches)
    assert learner.model() == at_once.model()
    assert decode_beside_prefill(learner) == pytest.approx(1.6, rel=0.02)


def test_long_company_of_many_short_steps_is_seen() -> None:
    learner = CostLearner(base())
    disturbed = steps(DECODE, 100, 1.4, 100.0)
    one_step = StepRecord(INGEST, 99.9, end(disturbed) - 99.8, 64, 1, 0)
    feed(learner, [{"one": disturbed}, {"two": [one_step]}])
    assert decode_beside_prefill(learner) == pytest.approx(1.4, rel=0.02)
    assert learner.model().slowdown("one", DECODE, [("two", PREFILL)]) > 1.2


def test_a_known_slowdown_is_not_taken_for_a_slow_engine() -> None:
    known = {(("one", DECODE), ("two", PREFILL)): 1.6}
    learner = CostLearner(base(known))
    disturbed, company = beside(1.6)
    feed(learner, [{"one": disturbed, "two": company}])
    assert learner.model().engines["one"].decode.seconds(1, 0) == pytest.approx(6e-3, rel=0.02)
    assert learner.errors()["one", DECODE].error == pytest.approx(0.0, abs=0.02)
    # Half of each step in company: the slowdown counts for that half of the work.
    learner = CostLearner(base(known))
    made, company, at = [], [], 0.0
    for _ in range(100):
        work = ENGINE.decode.seconds(1, 0)
        made.append(StepRecord(DECODE, at, work / 2 + 1.6 * work / 2, 1, 1, 0))
        company.append(StepRecord(INGEST, at, 1.6 * work / 2, 64, 1, 0))
        at = end(made)
    feed(learner, [{"one": made, "two": company}])
    assert learner.model().engines["one"].decode.seconds(1, 0) == pytest.approx(6e-3, rel=0.02)


def test_what_two_others_did_together_is_divided_between_them() -> None:
    learner = CostLearner(base())
    disturbed, company = beside(1.6)
    encoding = [StepRecord(ENCODE, 0.02 * i, 0.02, 0, 1, 0) for i in range(200)]
    feed(learner, [{"one": disturbed, "two": company, "vision": encoding}])
    model = learner.model()
    by_two = model.slowdown("one", DECODE, [("two", PREFILL)])
    by_vision = model.slowdown("one", DECODE, [("vision", ENCODE)])
    alone = model.engines["one"].decode.seconds(1, 0) / ENGINE.decode.seconds(1, 0)
    assert by_two == pytest.approx(by_vision, rel=0.02) and 1.1 < by_two < 1.4
    assert alone * by_two * by_vision == pytest.approx(1.6, rel=0.02)


@pytest.mark.parametrize("part", [0.3, 0.8, 0.95, 1.0])
def test_no_company_explains_everything(part: float) -> None:
    """A step that was in company for most of its time and took a hundred times as long, again and
    again: the slowdown stays below its bound, what is expected comes right."""
    learner = CostLearner(base())
    made, company, at = [], [], 0.0
    for _ in range(2000):
        seconds = 100 * ENGINE.decode.seconds(1, 0)
        made.append(StepRecord(DECODE, at, seconds, 1, 1, 0))
        company.append(StepRecord(INGEST, at, part * seconds, 64, 1, 0))
        at = end(made)
    feed(learner, [{"one": made, "two": company}])
    assert learner.model().slowdown("one", DECODE, [("two", PREFILL)]) <= MOST_SLOWDOWN
    assert learner.errors()["one", DECODE].error < 0.01


def test_several_encoders_of_one_name_disturb_like_one() -> None:
    """Three that work all the time are no more than all of the time."""
    known = {(("one", DECODE), ("vision", ENCODE)): 4.0}
    learner = CostLearner(base(known))
    made = steps(DECODE, 100, 4.0)
    encoding = [StepRecord(ENCODE, 0.02 * (i // 3), 0.02, 0, 1, 0) for i in range(600)]
    feed(learner, [{"one": made, "vision": encoding}])
    assert learner.model().engines["one"].decode.seconds(1, 0) == pytest.approx(6e-3, rel=0.02)
    assert learner.errors()["one", DECODE].error == pytest.approx(0.0, abs=0.02)


def test_of_several_encoders_a_short_step_may_be_over_before_a_long_one() -> None:
    learner = CostLearner(base({(("one", DECODE), ("vision", ENCODE)): 2.0}))
    made = [StepRecord(DECODE, 10.0 * i + 3.0, 1.5 * 6e-3, 1, 1, 0) for i in range(100)]
    for i, step in enumerate(made):
        # Two thirds of the step beside the long one; the short ones had ended long before.
        long = StepRecord(ENCODE, 10.0 * i, 3.0 + 6e-3, 0, 1, 0)
        short = [StepRecord(ENCODE, 10.0 * i + k, 0.1, 0, 1, 0) for k in (1, 2)]
        learner.observe({"one": [step], "vision": [long, *short]})
    learner.observe(later(1000.0))
    model = learner.model()
    found = model.engines["one"].decode.seconds(1, 0) / 6e-3
    assert found / (1 - 2 / 3 * (1 - 1 / model.slowdown("one", DECODE, [("vision", ENCODE)]))) == (
        pytest.approx(1.5, rel=0.03)
    )
    assert found == pytest.approx(1.0, rel=0.1)


def test_costs_stay_what_they_are_where_nobody_is_ever_alone() -> None:
    """Two engines that are always busy, an encoder that often is; two others disturb no more than
    one. What it costs to be alone cannot be seen then, and it must not drift away together with
    the slowdowns."""
    rng = random.Random(5)
    slow = 2.0
    learner = CostLearner(base())
    alone = [step for k, a in enumerate((DECODE, INGEST, EXPORT)) for step in steps(a, 9, 1.0, k)]
    batches: list[dict[str, list[StepRecord]]] = [{"one": alone}]
    at = dict.fromkeys(("one", "two", "vision"), 10.0)
    doing = dict.fromkeys(at, ENCODE)
    for _ in range(3000):
        batch: dict[str, list[StepRecord]] = {name: [] for name in at}
        for _ in range(10):
            name = min(at, key=at.__getitem__)
            activity = ENCODE if name == "vision" else rng.choice((DECODE, INGEST, EXPORT))
            others = [doing[other] for other in at if other != name]
            factor = (slow if {INGEST, DECODE} & set(others) else 1.0) * rng.uniform(0.7, 1.4)
            rows, history, n_bytes = rng.randint(1, 64), rng.randint(0, 400), 50_000
            seconds = factor * alone_s(activity, rows, history, n_bytes)
            batch[name].append(StepRecord(activity, at[name], seconds, rows, 1, history, n_bytes))
            pause = rng.choice((0.0, 0.1)) if name == "vision" else 0.0
            doing[name], at[name] = activity, at[name] + seconds + pause
        batches.append(batch)
    feed(learner, batches)
    assert max(learner.model().slowdowns.values()) < 1.5 * slow
    for error in learner.errors().values():
        assert 0.8 < error.factor < 1.5 and error.error < 0.3


def test_what_is_looked_at_is_forgotten() -> None:
    learner = CostLearner(base())
    for second in range(40):
        learner.observe({"one": steps(DECODE, 100, 1.0, float(second))})
    kept = sum(len(track.steps) for track in learner._overlaps._tracks.values())
    assert kept <= 100 * (HOLD_S + 2)


def test_the_model_is_made_anew_only_when_something_was_learnt() -> None:
    learner = CostLearner(base())
    feed(learner, [{"one": steps(DECODE, 10, 2.0)}])
    model = learner.model()
    assert learner.model() is model
    feed(learner, [{"one": steps(DECODE, 10, 2.0, 100.0)}])
    assert learner.model() is not model


def test_errors_are_bounded_until_they_last() -> None:
    rng = random.Random(4)
    errors = RobustErrors()
    for _ in range(1000):
        error = rng.uniform(-1, 1)
        assert abs(errors.bounded(error)) <= abs(error)
    assert errors.bounded(1e9) < 3
    for _ in range(100):
        last = errors.bounded(-50.0)
    assert last == -50.0
