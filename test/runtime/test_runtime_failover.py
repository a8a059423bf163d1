"""An engine is lost: what it was doing goes on on another one, with the tokens it would have had.

The second engine is a process of its own, killed at moments that a held native call makes certain.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from helpers import PATIENCE_S, Gate, Start, changes, engine_of, eventually, held, settle, show

from edge_vlm_ros.engines.errors import ContextError
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AskOptions,
    EngineConfig,
    FinishReason,
    PlacementConfig,
    QuestionRejected,
    Runtime,
    RuntimeListener,
    SamplingParameters,
)

CPU = EngineConfig(name="cpu", n_threads=1)
FAR = EngineConfig(name="far", device="rpc", n_threads=1)
SECOND = EngineConfig(name="second", n_threads=1)
AT_ONCE = PlacementConfig(retry_s=0.05, max_retry_s=0.2)
NO_SNAPSHOTS = PlacementConfig(retry_s=600.0, max_retry_s=600.0, snapshot_entries=0)
NEVER = PlacementConfig(retry_s=600.0, max_retry_s=600.0)
QUESTION = "Describe the scene."
N_FRAMES = 6

GREEDY = SamplingParameters()
SAMPLED = SamplingParameters(temperature=3.0, top_k=40, seed=11)
PENALISED = SamplingParameters(temperature=2.0, top_p=0.95, repeat_penalty=1.4, seed=3)


@dataclass
class Heard(RuntimeListener):
    """What the runtime tells about engines and ends."""

    failed: list[tuple[str, str]] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    moved: list[tuple[int, str]] = field(default_factory=list)
    ended: Counter[int] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def engine_failed(self, engine: str, error: str) -> None:
        self.failed.append((engine, error))

    def engine_recovered(self, engine: str) -> None:
        self.recovered.append(engine)

    def answer_moved(self, answer: Answer, engine: str, why: str) -> None:
        self.moved.append((answer.answer_id, engine))

    def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
        self.ended[answer.answer_id] += 1

    def frame_dropped(self, stream: str, reason: str, text: str) -> None:
        self.dropped[reason] += 1


@dataclass
class Robot:
    """A runtime that has seen a clip, and what it tells."""

    runtime: Runtime
    heard: Heard

    def ask(self, **options: Any) -> Answer:
        options.setdefault("max_tokens", 32)
        return self.runtime.ask("table", QUESTION, AskOptions(**options))

    def see(self, n: int) -> None:
        """Show the ``n``-th frame."""
        show(self.runtime, "table", changes(1)[0].clip.frames(n + 1)[n:], n)

    def kill(self, name: str = "far") -> None:
        os.kill(self.server_pid(name), signal.SIGKILL)
        eventually(lambda: not self.server(name).alive, "the server is dead")

    def server(self, name: str) -> Any:
        return self.runtime._maker._devices[f"rpc of {name}"].server

    def server_pid(self, name: str) -> int:
        pid: int = self.server(name).pid
        return pid

    def health(self, name: str = "far") -> str:
        return self.reading(name).health

    def reading(self, name: str = "far") -> Any:
        return next(e for e in self.runtime.engine_status() if e.status.name == name)

    def hold(
        self, method: str, engine: str = "far", when: Callable[..., bool] = lambda *arguments: True
    ) -> Any:
        """Hold an engine before a native call."""
        return held(engine_of(self.runtime, engine)._context, method, when)

    def assert_each_ended_once(self) -> None:
        status = self.runtime.question_status()
        assert status.pending == 0
        assert status.accepted == sum(status.finished.values())
        assert self.heard.ended == Counter(range(1, status.accepted + 1))

    def assert_works_again(self, expected: AnswerResult, name: str = "far") -> None:
        """The engine is ready, and answers what a question needs of it."""
        eventually(lambda: self.health(name) == "ready", "the engine works again")
        assert name in self.heard.recovered
        again = self.ask(engine=name, path="replay").result(PATIENCE_S)
        assert (again.metrics.engine, again.metrics.failovers) == (name, 0)
        assert again.token_ids == expected.token_ids
        assert again.error == ""
        self.assert_each_ended_once()


MakeRobot = Callable[..., Robot]


@pytest.fixture
def robot(start: Start) -> MakeRobot:
    def make(
        *engines: EngineConfig, placement: PlacementConfig = AT_ONCE, ingest_on: str = ""
    ) -> Robot:
        heard = Heard()
        made = Robot(
            start(engines=engines or (CPU, FAR), placement=placement, listener=heard), heard
        )
        if ingest_on:
            made.runtime.move_ingestion("table", ingest_on)
        show(made.runtime, "table", changes(1)[0].clip.frames(N_FRAMES))
        settle(made.runtime)
        return made

    return make


def is_prefill(tokens: Any, positions: Any, sequences: Any, wants_logits: Sequence[bool]) -> bool:
    return wants_logits[-1] and not all(wants_logits)


def decode_step(n: int) -> Callable[..., bool]:
    """True for the decode step after ``n`` others."""
    steps = iter(range(1_000_000))

    def is_due(tokens: Any, positions: Any, sequences: Any, wants_logits: Sequence[bool]) -> bool:
        return all(wants_logits) and next(steps) >= n

    return is_due


@contextmanager
def raising(runtime: Runtime, engine: str, when: Callable[..., bool]) -> Iterator[None]:
    """A native call of an engine raises what nobody expects, which ends the engine's thread."""
    context = engine_of(runtime, engine)._context
    original = context.decode_tokens

    def decode_tokens(*arguments: Any) -> None:
        if when(*arguments):
            raise RuntimeError("out of luck")
        original(*arguments)

    context.decode_tokens = decode_tokens
    yield
    context.decode_tokens = original


def assert_goes_on(answer: Answer, expected: AnswerResult) -> AnswerResult:
    """The pieces of the answer, those before the loss included, are the undisturbed text."""
    updates = list(answer)
    result = answer.result(PATIENCE_S)
    assert (result.finish_reason, result.error) == (expected.finish_reason, "")
    assert result.token_ids == expected.token_ids
    pieces = [update for update in updates if update.delta]
    assert [update.sequence for update in pieces] == list(range(len(pieces)))
    assert "".join(update.delta for update in pieces) == result.text == expected.text
    counts = [update.generated_tokens for update in updates]
    assert counts == sorted(counts)
    assert result.context == expected.context
    return result


# ------------------------------------------------------------------------- in mid-answer
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED])
@pytest.mark.parametrize("n_steps", [0, 9])
def test_an_answer_goes_on_elsewhere_with_the_same_tokens(
    robot: MakeRobot, sampling: SamplingParameters, n_steps: int
) -> None:
    made = robot()
    expected = made.ask(engine="far", sampling=sampling).result(PATIENCE_S)
    assert expected.metrics.engine == "far" and len(expected.token_ids) > n_steps + 2
    with made.hold("decode_tokens", when=decode_step(n_steps)) as gate:
        answer = made.ask(engine="far", sampling=sampling)
        gate.wait_until_reached()
        made.kill()
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 1)
    assert made.heard.moved == [(answer.answer_id, "cpu")]
    ((engine, error),) = made.heard.failed
    assert engine == "far" and error
    assert made.reading().failures == 1
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    made.assert_works_again(greedy)
    assert made.runtime.placement_status().failovers == 1


def test_several_answers_go_on_and_those_of_other_engines_are_not_touched(robot: MakeRobot) -> None:
    made = robot()
    samplings = (GREEDY, SAMPLED, PENALISED)
    expected = [made.ask(engine="far", sampling=s).result(PATIENCE_S) for s in samplings]
    with made.hold("decode_tokens", when=decode_step(5)) as gate:
        answers = [made.ask(engine="far", sampling=s) for s in samplings]
        gate.wait_until_reached()
        other = made.ask(engine="cpu")
        made.kill()
    for answer, undisturbed in zip(answers, expected, strict=True):
        assert assert_goes_on(answer, undisturbed).metrics.failovers == 1
    assert assert_goes_on(other, expected[0]).metrics.failovers == 0
    made.assert_works_again(expected[0])


def test_a_question_that_is_being_prefilled_is_prefilled_elsewhere(robot: MakeRobot) -> None:
    made = robot()
    expected = made.ask(engine="far").result(PATIENCE_S)
    with made.hold("decode_tokens", when=is_prefill) as gate:
        answer = made.ask(engine="far")
        gate.wait_until_reached()
        made.kill()
    assert assert_goes_on(answer, expected).metrics.engine == "cpu"
    made.assert_works_again(expected)


def test_an_engine_that_raises_is_lost_like_one_that_died(robot: MakeRobot) -> None:
    made = robot()
    expected = made.ask(engine="cpu", sampling=SAMPLED).result(PATIENCE_S)
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    with raising(made.runtime, "cpu", decode_step(4)):
        answer = made.ask(engine="cpu", sampling=SAMPLED)
        result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("far", 1)
    assert made.heard.failed == [("cpu", "RuntimeError: out of luck")]
    made.assert_works_again(greedy, "cpu")


def test_an_answer_survives_the_loss_of_both_engines_one_after_the_other(robot: MakeRobot) -> None:
    made = robot(CPU, FAR, SECOND)
    expected = made.ask(engine="far", sampling=SAMPLED).result(PATIENCE_S)
    with raising(made.runtime, "cpu", decode_step(4)):
        with made.hold("decode_tokens", when=decode_step(4)) as gate:
            answer = made.ask(engine="far", sampling=SAMPLED)
            gate.wait_until_reached()
            made.kill()
        result = assert_goes_on(answer, expected)
    assert result.metrics.failovers >= 1
    moves = [engine for _, engine in made.heard.moved]
    assert moves[-1] == result.metrics.engine and result.metrics.failovers == len(moves)
    made.assert_works_again(made.ask(engine="second").result(PATIENCE_S))


# ------------------------------------------------------------------------- history on the way
def test_ingestion_goes_on_on_another_engine(robot: MakeRobot) -> None:
    made = robot(ingest_on="far")
    with made.hold("decode_embeddings") as gate:
        made.see(N_FRAMES)
        answer = made.ask()
        gate.wait_until_reached()
        made.kill()
    result = answer.result(PATIENCE_S)
    assert (result.metrics.engine, result.context.frames) == ("cpu", N_FRAMES + 1)
    settle(made.runtime)
    made.assert_works_again(result)
    made.see(N_FRAMES + 1)  # the engine that was chosen ingests again
    settle(made.runtime)
    assert made.runtime.stream_status("table").ingest_engine == "far"
    last = made.ask(path="local").result(PATIENCE_S)
    assert last.metrics.engine == "far" and last.context.frames == N_FRAMES + 2
    assert last.token_ids == made.ask(engine="cpu", path="replay").result(PATIENCE_S).token_ids


def test_a_history_that_cannot_be_exported_any_more_is_replayed(robot: MakeRobot) -> None:
    made = robot(ingest_on="far")
    expected = made.ask(engine="far").result(PATIENCE_S)
    with made.hold("export_range") as gate:
        answer = made.ask(engine="cpu", path="import")
        gate.wait_until_reached()
        made.kill()
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.path) == ("cpu", "replay")
    made.assert_works_again(expected)


def test_an_export_for_a_third_engine_is_lost(robot: MakeRobot) -> None:
    """Neither the engine that waits nor the one that ingests has failed, and no frame comes."""
    made = robot(FAR, CPU, SECOND, placement=NO_SNAPSHOTS, ingest_on="far")
    made.runtime.move_ingestion("table", "cpu")
    made.see(N_FRAMES)
    settle(made.runtime)
    expected = made.ask(engine="far").result(PATIENCE_S)
    with made.hold("export_range") as gate:
        answer = made.ask(engine="second", path="import")
        gate.wait_until_reached()
        made.kill()
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("second", 0)
    made.assert_each_ended_once()


def test_a_question_whose_history_is_being_imported_is_answered_elsewhere(
    robot: MakeRobot,
) -> None:
    made = robot()
    expected = made.ask(engine="cpu").result(PATIENCE_S)
    with made.hold("import_range") as gate:
        answer = made.ask(engine="far", path="import")
        gate.wait_until_reached()
        made.kill()
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.path) == ("cpu", "local")
    made.assert_works_again(expected)


# ------------------------------------------------------------------------- handing over
def hand_over(made: Robot, engine: str, gate: Gate) -> Answer:
    """Begin a handover to ``engine`` and lose the server at the gate."""
    other = "far" if engine == "cpu" else "cpu"
    answer = made.ask(engine=engine, prefill_engine=other, sampling=SAMPLED)
    gate.wait_until_reached()
    made.kill()
    return answer


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("cpu", "export_range"),  # far has computed the question and is to hand it over
        ("far", "import_range"),  # far is to take it
    ],
)
def test_a_handover_that_the_loss_interrupts(robot: MakeRobot, engine: str, method: str) -> None:
    made = robot()
    made.ask(engine="far").result(PATIENCE_S)  # both hold the history
    expected = made.ask(engine="cpu", sampling=SAMPLED).result(PATIENCE_S)
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    with made.hold(method) as gate:
        answer = hand_over(made, engine, gate)
    result = assert_goes_on(answer, expected)
    assert (result.metrics.engine, result.metrics.failovers) == ("cpu", 1)
    made.assert_works_again(greedy)


def test_the_engine_an_answer_was_to_go_to_is_lost_before(robot: MakeRobot) -> None:
    """It is noticed while the other engine computes the question, which then keeps it."""
    made = robot()
    made.ask(engine="far").result(PATIENCE_S)
    expected = made.ask(engine="cpu", sampling=SAMPLED).result(PATIENCE_S)
    greedy = made.ask(engine="cpu").result(PATIENCE_S)
    with made.hold("decode_tokens", "cpu", is_prefill) as gate:
        answer = hand_over(made, "far", gate)
        notices = made.ask(engine="far", max_tokens=2)
        eventually(lambda: made.heard.failed, "the loss is noticed")
    result = assert_goes_on(answer, expected)
    assert result.metrics.engine == "cpu"
    assert notices.result(PATIENCE_S).token_ids == greedy.token_ids[:2]
    made.assert_works_again(greedy)


# ------------------------------------------------------------------------- nothing to do
def test_a_loss_while_idle_shows_with_the_next_question(robot: MakeRobot) -> None:
    made = robot()
    expected = made.ask(engine="far").result(PATIENCE_S)
    made.kill()
    result = assert_goes_on(made.ask(engine="far"), expected)
    assert result.metrics.engine == "cpu"
    made.assert_works_again(expected)


def test_it_can_be_lost_again_and_again(robot: MakeRobot) -> None:
    made = robot()
    expected = made.ask(engine="far").result(PATIENCE_S)
    for n in range(1, 4):
        with made.hold("decode_tokens", when=decode_step(3)) as gate:
            answer = made.ask(engine="far")
            gate.wait_until_reached()
            made.kill()
        assert assert_goes_on(answer, expected).metrics.failovers == 1
        made.assert_works_again(expected)
        assert made.reading().failures == n


# ------------------------------------------------------------------------- no engine left
def test_the_only_engine_is_lost(robot: MakeRobot) -> None:
    """Its questions end with the reason; frames and questions are refused until it is back."""
    made = robot(FAR, placement=NEVER)
    expected = made.ask().result(PATIENCE_S)
    with made.hold("decode_tokens", when=decode_step(3)) as gate:
        answer, waiting = made.ask(), made.ask(sampling=SAMPLED)
        gate.wait_until_reached()
        made.kill()
    result = answer.result(PATIENCE_S)
    assert result.finish_reason is FinishReason.ERROR
    assert "engine far failed" in result.error and "no other engine is left" in result.error
    assert result.token_ids == expected.token_ids[: len(result.token_ids)]
    assert expected.text.startswith(result.text)
    assert waiting.result(PATIENCE_S).finish_reason is FinishReason.ERROR
    with pytest.raises(QuestionRejected, match="engine far failed") as rejection:
        made.ask()
    assert rejection.value.reason == "engine_failed"
    made.see(N_FRAMES)
    eventually(lambda: made.heard.dropped["engine_failed"] == 1, "the frame is refused")
    reading = made.reading()
    assert (reading.health, reading.failures) == ("failed", 1)
    assert reading.error and reading.retry_in_s > 0
    made.assert_each_ended_once()


def test_the_only_engine_comes_back_and_computes_the_history_again(robot: MakeRobot) -> None:
    made = robot(FAR)
    expected = made.ask().result(PATIENCE_S)
    with made.hold("decode_tokens", when=decode_step(3)) as gate:
        answer = made.ask()
        gate.wait_until_reached()
        made.kill()
    assert answer.result(PATIENCE_S).finish_reason is FinishReason.ERROR
    made.assert_works_again(expected)


def test_the_last_engine_fails_while_the_other_is_still_away(robot: MakeRobot) -> None:
    made = robot(placement=NEVER)
    made.kill()
    assert made.ask(engine="far").result(PATIENCE_S).metrics.engine == "cpu"
    assert made.health() == "failed"
    with raising(made.runtime, "cpu", decode_step(3)):
        result = made.ask().result(PATIENCE_S)
    assert result.finish_reason is FinishReason.ERROR and result.token_ids
    assert "out of luck" in result.error and "no other engine is left" in result.error
    assert [made.health(name) for name in ("cpu", "far")] == ["failed", "failed"]
    made.assert_each_ended_once()


def test_starting_again_is_tried_until_it_works(
    robot: MakeRobot, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = robot()
    expected = made.ask(engine="far").result(PATIENCE_S)
    make, refusals = made.runtime._parts.slots._make, iter(range(2))

    def reluctant(config: EngineConfig, emit: Any) -> Any:
        if next(refusals, None) is not None:
            raise ContextError("not yet")
        return make(config, emit)

    monkeypatch.setattr(made.runtime._parts.slots, "_make", reluctant)
    made.kill()
    assert made.ask(engine="far").result(PATIENCE_S).metrics.engine == "cpu"
    made.assert_works_again(expected)
    assert made.reading().failures == 3


# -------------------------------------------------------------------------------- hanging
def server_pid(runtime: Runtime) -> int:
    return next(
        device.server.pid
        for device in runtime._maker._devices.values()
        if device.server is not None
    )


@pytest.mark.parametrize("end", ["deadline", "cancel"])
def test_a_question_on_an_engine_that_hangs_ends_all_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr("edge_vlm_ros.runtime.answering.END_GRACE_S", 0.2)
    monkeypatch.setattr("edge_vlm_ros.engines.llama_engine.CLOSE_TIMEOUT_S", 0.5)
    runtime = start("table", engines=(CPU, FAR))
    show(runtime, "table", changes(1)[0].clip.frames(N_FRAMES))
    settle(runtime)
    assert runtime.ask("table", QUESTION, AskOptions(engine="far")).result(PATIENCE_S).text
    pid = server_pid(runtime)
    os.kill(pid, signal.SIGSTOP)
    deadline = 0.3 if end == "deadline" else 0.0
    answer = runtime.ask("table", QUESTION, AskOptions(engine="far", deadline_s=deadline))
    if end == "cancel":
        eventually(lambda: runtime._loaded().answering.questions[answer.answer_id].running_on)
        answer.cancel()
    expected = FinishReason.DEADLINE if end == "deadline" else FinishReason.CANCELLED
    assert answer.result(PATIENCE_S).finish_reason is expected
    assert runtime.ask("table", QUESTION, AskOptions(engine="cpu")).result(PATIENCE_S).text
    runtime.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
