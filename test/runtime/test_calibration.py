"""What engines cost is measured, kept, and nothing of the measurement stays behind."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import astuple, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from formula_engine import Clock, FormulaEngine, Inbox
from helpers import demo_config, demo_profile, eventually

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.engines.protocol import (
    AnswerFinished,
    AppendToTrunk,
    Boundary,
    DropTrunk,
    StartAnswer,
    TokenSegment,
    TrunkId,
    VersionComputed,
)
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.engines.step_record import Activity, StepRecord
from edge_vlm_ros.planning.costs import (
    ENCODER,
    BatchCost,
    CostModel,
    EngineCosts,
    MoveCost,
    RowCost,
    even_batches,
)
from edge_vlm_ros.runtime import calibration
from edge_vlm_ros.runtime.calibration import (
    CalibrationTime,
    calibrate,
    calibration_key,
    stored_or_calibrated,
)
from edge_vlm_ros.runtime.calibration_engine import EngineBench, EngineRoom
from edge_vlm_ros.runtime.calibration_pairs import EncoderBench, PairBench, beside
from edge_vlm_ros.runtime.config import PlanningConfig, QuestionLimits, RuntimeConfig
from edge_vlm_ros.runtime.engine_maker import EngineMaker, EngineSizes
from edge_vlm_ros.runtime.engine_slots import EngineSlots
from edge_vlm_ros.runtime.engine_talk import EngineTalk
from edge_vlm_ros.runtime.prompt import PromptTemplate, prompt_template
from edge_vlm_ros.runtime.sizing import answer_cells
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder

PREFILL, DECODE, ENCODE = Activity.PREFILL, Activity.DECODE, Activity.ENCODE
MOVES = (Activity.EXPORT, Activity.IMPORT)
QUESTIONS = QuestionLimits(max_pending=4)
TRUE = EngineCosts(
    RowCost(1e-3, 2e-4, 3e-8),
    even_batches(4e-3, 5e-4, 6e-7),
    MoveCost(1e-3, 2e-8),
    MoveCost(3e-3, 4e-8),
)
PROMPT: Any = SimpleNamespace(open_tokens=(1, 2, 3), ask_tokens=(4, 5))


# -------------------------------------------------------------------------------- by formula
def formula(
    config: EngineConfig | None = None, costs: EngineCosts = TRUE, **settings: Any
) -> tuple[EngineSlots, Inbox, FormulaEngine]:
    """One engine that costs what is known, started."""
    inbox = Inbox()
    slots = EngineSlots(
        [config or EngineConfig()],
        lambda config, emit: FormulaEngine(config, costs, emit, **settings),
        inbox.put,
        1.0,
        60.0,
    )
    slots.start_all()
    engine: Any = slots.engine(slots.names[0])
    inbox.work = engine.work
    return slots, inbox, engine


def measured(slots: EngineSlots, inbox: Inbox) -> EngineCosts:
    costs = calibrate(slots, inbox, PROMPT, QUESTIONS, 2048, None)
    assert not costs.encode_s and not costs.slowdowns
    return costs.engines[slots.names[0]]


def assert_equal_rows(
    found: RowCost | BatchCost, expected: RowCost | BatchCost, rows: tuple[int, ...]
) -> None:
    for n, history in product(rows, (0, 100, 1500)):
        assert found.seconds(n, history) == pytest.approx(expected.seconds(n, history), rel=1e-3)


@pytest.mark.parametrize("ends_at_once", [False, True], ids=["usual", "answers end at once"])
def test_known_costs_are_found(ends_at_once: bool) -> None:
    slots, inbox, engine = formula(ends_at_once=ends_at_once)
    found = measured(slots, inbox)
    assert_equal_rows(found.prefill, TRUE.prefill, (1, 16, 64))
    assert_equal_rows(found.decode, TRUE.decode, (1, 2, 3, 4))
    for n_bytes in (1000, 20_000):
        assert found.export.seconds(n_bytes) == pytest.approx(TRUE.export.seconds(n_bytes))
        assert found.import_.seconds(n_bytes) == pytest.approx(TRUE.import_.seconds(n_bytes))
    assert found.fork_s > 0
    engine.work()
    assert not engine.trunks and inbox.empty()


def test_batches_that_grow_unevenly_are_found() -> None:
    """As kernels do whose tiles have four rows."""
    tiled = BatchCost(((1, 4e-3), (2, 1.2e-2), (3, 1.4e-2), (4, 1.5e-2), (6, 2.2e-2)), 6e-7)
    slots, inbox, _ = formula(EngineConfig(max_parallel=6), replace(TRUE, decode=tiled))
    found = calibrate(slots, inbox, PROMPT, QuestionLimits(max_pending=8), 2048, None)
    assert_equal_rows(found.engines["cpu"].decode, tiled, (1, 2, 3, 4, 6))


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (EngineConfig(max_parallel=1), {}),
        (EngineConfig(), {"batching": False}),
        (EngineConfig(chunk_tokens=1, transfer_tokens=1), {}),
        (EngineConfig(chunk_tokens=512), {}),
        (EngineConfig(), {"n_cells": answer_cells(QUESTIONS) + 40}),
    ],
    ids=["one answer", "in turns", "tiny chunks", "chunks beyond the cells", "few cells"],
)
def test_unusual_engines_are_measured_within_their_room(
    config: EngineConfig, settings: dict[str, Any]
) -> None:
    slots, inbox, engine = formula(config, **settings)
    found = measured(slots, inbox)
    assert found.decode.seconds(1, 20) == pytest.approx(TRUE.decode.seconds(1, 20), rel=0.05)
    assert found.prefill.seconds(1, 20) == pytest.approx(TRUE.prefill.seconds(1, 20), rel=0.3)
    assert engine.most_cells <= engine.n_cells - answer_cells(QUESTIONS)


def test_a_slow_engine_is_measured_once_and_not_much_longer() -> None:
    """Seconds a step: each kind is seen, and 256 tokens of history, which do not grow on for
    minutes."""
    slow = EngineCosts(
        RowCost(0.1, 0.03, 1e-6), even_batches(0.4, 0.01, 1e-5), TRUE.export, TRUE.import_
    )
    clock = Clock()
    slots, inbox, engine = formula(costs=slow, clock=clock)
    room = EngineRoom(engine._config, 2048, answer_cells(QUESTIONS), 4, (1, 2))
    found = EngineBench(EngineTalk(slots, inbox), "cpu", room, clock).measure(4.0)
    assert_equal_rows(found.decode, slow.decode, (1, 2, 4))
    assert found.prefill.seconds(64, 0) == pytest.approx(slow.prefill.seconds(64, 0), rel=0.05)
    assert found.decode.seconds(4, 320) == pytest.approx(slow.decode.seconds(4, 320), rel=1e-3)
    assert clock.now < 60
    assert engine.most_cells < 700


def test_an_engine_that_fails_is_named() -> None:
    slots, inbox, _ = formula(EngineConfig(name="second"), fails=True)
    with pytest.raises(EngineError, match="engine second.*the device is gone"):
        measured(slots, inbox)


def test_only_steps_in_company_count() -> None:
    def step(start: float, seconds: float) -> StepRecord:
        return StepRecord(DECODE, start, seconds, 1, 1, 0)

    own = [step(0.0, 1.0), step(1.0, 1.0), step(2.0, 1.0), step(3.0, 1.0)]
    others = [step(0.5, 0.4), step(0.9, 0.6), step(1.5, 1.2), step(2.8, 0.3)]
    assert beside(own, others) == own[1:3]
    assert beside(own, []) == []


def test_only_the_largest_batch_counts_beside_another_engine() -> None:
    """A row or two fight for memory, and are not what runs when there is something to do."""

    def step(n: int, seconds: float) -> StepRecord:
        return StepRecord(DECODE, 0.0, seconds, n, n, 0)

    costs = replace(TRUE, decode=even_batches(0.01, 0.01, 0.0))
    talk: Any = None
    bench = PairBench(talk, {"cpu": costs}, {}, None, 0.0)
    steps = [step(1, 0.06), step(1, 0.06), step(1, 0.06), step(2, 0.06), step(4, 0.05)]
    assert bench._times("cpu", DECODE, steps) == [pytest.approx(1.0)]
    assert bench._times("cpu", DECODE, steps[:3]) == [pytest.approx(3.0)] * 3
    assert bench._times("cpu", DECODE, []) == []


# -------------------------------------------------------------------------------- stored
@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[CostModel]:
    """The models that were measured, each another one."""
    made: list[CostModel] = []

    def measure(*arguments: Any, **options: Any) -> CostModel:
        made.append(CostModel({"cpu": TRUE}, {ENCODER: 0.1 * (len(made) + 1)}))
        return made[-1]

    monkeypatch.setattr(calibration, "calibrate", measure)
    return made


ANY_ENCODER: Any = SimpleNamespace(identity=b"encoder", backend="none", n_tokens=4)


def costs_of(mode: Any, folder: Path, *engines: EngineConfig) -> CostModel:
    config = demo_config(engines=engines or (EngineConfig(),))
    planning = PlanningConfig(calibration=mode, calibration_folder=str(folder))
    config = RuntimeConfig(config.profile, config.streams, config.engines, planning=planning)
    slots, inbox, _ = formula(config.engines[0])
    return stored_or_calibrated(config, slots, inbox, PROMPT, ANY_ENCODER)


def test_auto_measures_once(tmp_path: Path, calls: list[CostModel]) -> None:
    first = costs_of("auto", tmp_path)
    assert costs_of("auto", tmp_path) == first == calls[0] and len(calls) == 1
    # Another engine has other costs.
    costs_of("auto", tmp_path, EngineConfig(n_threads=1, chunk_tokens=32))
    assert len(calls) == 2
    assert costs_of("auto", tmp_path) == first


def test_always_measures_anew_and_keeps_it(tmp_path: Path, calls: list[CostModel]) -> None:
    costs_of("always", tmp_path)
    assert costs_of("always", tmp_path) == calls[1]
    assert costs_of("auto", tmp_path) == calls[1] and len(calls) == 2


def test_never_guesses(tmp_path: Path, calls: list[CostModel]) -> None:
    costs = costs_of("never", tmp_path)
    assert set(costs.engines) == {"cpu"} and set(costs.encode_s) == {ENCODER}
    assert not calls and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, calls: list[CostModel], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert costs_of("auto", tmp_path / "file" / "folder") == calls[0]
    assert "are not kept" in caplog.text


def test_the_key_names_the_model_the_engines_and_the_machine() -> None:
    slots, _, _ = formula()
    key = calibration_key(demo_config(), slots, ANY_ENCODER)
    assert key["model"] == demo_profile().language.sha256
    assert [engine["name"] for engine in key["engines"]] == ["cpu"]
    assert key["machine"]["processor"] and key["machine"]["cores"] > 0


# -------------------------------------------------------------------------------- real engines
class Loaded:
    """The demo model on the CPU and in a process of its own, and its encoder."""

    def __init__(self) -> None:
        engines = (
            EngineConfig(name="cpu", n_threads=1),
            EngineConfig(name="second", device="rpc", n_threads=1),
        )
        self.profile = demo_profile()
        self.maker = EngineMaker(self.profile, (), lambda done: None)
        self.prompt: PromptTemplate = prompt_template(self.profile, self.maker.vocabulary)
        room = answer_cells(QUESTIONS)
        self.maker.set_sizes(
            EngineSizes(4, 4, 2, room, self.prompt.stop_tokens, lambda config: room + 1000)
        )
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.slots = EngineSlots(engines, self.maker.make, self.inbox.put, 1.0, 60.0)
        self.slots.start_all()
        self.encoder = OnnxEncoder(
            self.profile.encoder, self.profile.encoder.backends[0], threads=1
        )

    def answer(self, name: str) -> tuple[int, ...]:
        """Eight greedy tokens behind a short history; the engine is left as it was."""
        talk, trunk = EngineTalk(self.slots, self.inbox), TrunkId("after", 0)
        segments = (TokenSegment(self.prompt.open_tokens * 5),)
        done = talk.ask(name, AppendToTrunk(trunk, 1, segments), VersionComputed)
        command = StartAnswer(
            7,
            trunk,
            Boundary(1, done.tokens, bytes(32)),
            self.prompt.ask_tokens,
            8,
            SamplingParameters(),
            (),
        )
        tokens = talk.ask(name, command, AnswerFinished).token_ids
        talk.submit(name, DropTrunk(trunk))
        talk.take_steps(name)
        return tokens

    def close(self) -> None:
        self.slots.close()
        self.encoder.close()
        self.maker.close()


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    made = Loaded()
    yield made
    made.close()


def test_real_engines_are_measured_and_left_clean(loaded: Loaded) -> None:
    slots, inbox = loaded.slots, loaded.inbox
    before = {name: loaded.answer(name) for name in slots.names}
    heard: list[float] = []
    costs = calibrate(
        slots,
        inbox,
        loaded.prompt,
        QUESTIONS,
        loaded.profile.language.context_tokens,
        loaded.encoder,
        CalibrationTime(engine_s=0.5, pair_s=0.5, encoder_s=0.1),
        lambda what, done: heard.append(done),
    )
    assert inbox.empty()
    assert heard == sorted(heard) and 0 <= heard[0] and heard[-1] < 1 and len(set(heard)) > 3
    assert set(costs.engines) == {"cpu", "second"} and set(costs.encode_s) == {ENCODER}
    assert costs.encode_s[ENCODER] > 0
    for engine in costs.engines.values():
        assert min(astuple(engine.prefill)) >= 0 and engine.prefill.seconds(4, 200) > 0
        assert [n for n, _ in engine.decode.calls] == [1, 2, 3, 4]
        assert min(seconds for _, seconds in engine.decode.calls) > 0
        assert engine.export.seconds(10**5) > 0 and engine.import_.seconds(10**5) > 0
        assert engine.fork_s > 0
    # On a busy machine a move is sometimes never seen beside the other engine's work.
    assert {pair for pair in expected_pairs() if not has_move(pair)} <= set(costs.slowdowns)
    assert set(costs.slowdowns) <= expected_pairs()
    assert all(1.0 <= factor < 1000 for factor in costs.slowdowns.values())
    for name in slots.names:
        engine_now = slots.engine(name)
        assert loaded.answer(name) == before[name]
        eventually(lambda e=engine_now: (e.status().cells_used, e.status().trunks) == (0, 0))
        assert not engine_now.status().running_answers and not engine_now.status().waiting_answers


def test_answers_that_load_an_engine_are_long_enough_to_run_side_by_side(loaded: Loaded) -> None:
    """They begin one after the other, a step apart, however slow steps are."""
    room = EngineRoom(loaded.slots["cpu"].config, 300, 64, 4, loaded.prompt.open_tokens)
    bench = EngineBench(EngineTalk(loaded.slots, loaded.inbox), "cpu", room)
    costs = bench.measure(0.2)
    slow = replace(costs, decode=costs.decode.times(1e6))
    load = next(load for load in bench.loads(slow) if DECODE in load.activities)
    answers = [command for command in load.commands if isinstance(command, StartAnswer)]
    assert [answer.max_tokens for answer in answers] == [8] * 4
    bench.clear()


def has_move(pair: tuple[tuple[str, Activity], tuple[str, Activity]]) -> bool:
    return any(activity in MOVES for _, activity in pair)


def expected_pairs() -> set[tuple[tuple[str, Activity], tuple[str, Activity]]]:
    """Every engine and the encoder, disturbed by everything that lasts on every other."""
    doing = {
        "cpu": (PREFILL, DECODE, *MOVES),
        "second": (PREFILL, DECODE, *MOVES),
        ENCODER: (ENCODE,),
    }
    return {
        ((who, activity), (other, its))
        for who, other in product(doing, doing)
        if who != other
        for activity, its in product(doing[who], doing[other])
        if its not in MOVES
    }


def test_an_encoder_that_fails_ends_it_with_its_error() -> None:
    class Failing:
        input_size = (8, 8)

        def encode(self, rgb: Any) -> Any:
            assert isinstance(rgb, np.ndarray) and rgb.shape == (8, 8, 3)
            raise EncoderError("no such operator")

    failing: Any = Failing()
    with pytest.raises(EncoderError, match="no such operator"):
        EncoderBench(ENCODER, failing).measure(0.1)
