"""Engines that cannot exchange KV, and computations that one of them refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    changes,
    clip,
    engine_of,
    settle,
    show,
)
from two_engines import QUESTION, TWO, ask, path

from edge_vlm_ros.engines.errors import ComputeError, ImportRefusedError
from edge_vlm_ros.planning.learning import CostLearner
from edge_vlm_ros.runtime import (
    FinishReason,
    Runtime,
    RuntimeListener,
    planner,
)


# -------------------------------------------------------------------------------- pairs
class Heard(RuntimeListener):
    def __init__(self) -> None:
        self.incompatible: list[tuple[str, str]] = []

    def pair_incompatible(self, source: str, destination: str, detail: str) -> None:
        self.incompatible.append((source, destination))


def test_pairs_are_tried_at_the_start(two: Runtime) -> None:
    probes = {(p.source, p.destination): p for p in two.placement_status().probes}
    assert set(probes) == {("cpu", "second"), ("second", "cpu")}
    assert all(probe.outcome == "equal" and not probe.detail for probe in probes.values())
    assert [engine_of(two, name).status().trunks for name in ("cpu", "second")] == [2, 0]


def test_engines_that_cannot_exchange_kv_replay_loudly(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    other = replace(TWO[1], kv_type="f16")
    runtime = start("table", engines=(TWO[0], other), listener=heard)
    assert sorted(heard.incompatible) == [("cpu", "second"), ("second", "cpu")]
    assert "replayed instead" in caplog.text and "f16" in caplog.text
    probe = runtime.placement_status().probes[0]
    assert probe.outcome == "incompatible" and "f16" in probe.detail
    show(runtime, "table", clip(1).frames(3))
    settle(runtime)
    for options in ({}, {"path": "import"}, {"prefill_engine": "cpu"}):
        result = ask(runtime, engine="second", **options)
        assert result.finish_reason is FinishReason.STOP
        runtime.evict("table", "second")
        assert path(result)[2] == "replay"
    assert runtime.placement_status().failed_imports == 0, "it was not even tried"


# -------------------------------------------------------------------------------- trouble
def refuse(*arguments: Any) -> None:
    raise ComputeError("out of luck")


@pytest.mark.parametrize("n_tokens", [0, 1, 7])
def test_an_answer_that_one_engine_cannot_compute_goes_on_on_another(
    two: Runtime, monkeypatch: pytest.MonkeyPatch, n_tokens: int
) -> None:
    expected = ask(two)
    context = engine_of(two)._context
    compute, steps = context.decode_tokens, iter(range(n_tokens))

    def decode(tokens: Any, positions: Any, sequences: Any, wants_logits: Any) -> None:
        if all(wants_logits) and next(steps, None) is None:
            raise ComputeError("out of luck")
        compute(tokens, positions, sequences, wants_logits)

    monkeypatch.setattr(context, "decode_tokens", decode if n_tokens else refuse)
    answer = two.ask("table", QUESTION)
    deltas = [update.delta for update in answer]
    result = answer.result(PATIENCE_S)
    assert (result.token_ids, result.text, result.error) == (expected.token_ids, expected.text, "")
    assert "".join(deltas) == expected.text
    assert (result.metrics.engine, result.metrics.failovers) == ("second", 1)
    assert [reading.state for reading in two.engine_status()] == ["ready", "ready"]


def test_a_history_that_one_engine_cannot_compute_is_replayed_on_another(
    two: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = changes(1)[0]
    monkeypatch.setattr(engine_of(two)._context, "decode_embeddings", refuse)
    two.reset("table")
    show(two, "table", change.clip.frames(change.stop))
    result = ask(two, text=change.text)
    assert (result.text, result.metrics.engine) == (change.before, "second")


def test_a_handoff_that_is_refused_is_computed_again(
    two: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ask(two)
    ask(two, engine="second")  # it has the history: only the question's own part is to be moved
    monkeypatch.setattr(engine_of(two, "second")._context, "import_range", refuse_import)
    result = ask(two, engine="second", prefill_engine="cpu")
    assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
    assert result.metrics.engine == "second"


def refuse_import(*arguments: Any) -> None:
    raise ImportRefusedError("not today")


def test_what_no_engine_can_compute_ends_with_the_reason(
    two: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cpu", "second"):
        monkeypatch.setattr(engine_of(two, name)._context, "decode_tokens", refuse)
    result = two.ask("table", QUESTION).result(PATIENCE_S)
    assert result.finish_reason is FinishReason.ERROR and "out of luck" in result.error
    assert two.question_status().pending == 0


def test_a_question_for_which_no_plan_can_be_made_ends_with_the_reason(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = start()
    show(runtime, "table", clip(1).frames(2))
    settle(runtime)
    policy = runtime._loaded().planner.policy
    with monkeypatch.context() as broken:
        broken.setattr(policy, "plan", lambda *_: 1 / 0)
        result = runtime.ask("table", QUESTION).result(PATIENCE_S)
    assert result.finish_reason is FinishReason.ERROR
    assert "no plan could be made: ZeroDivisionError" in result.error
    assert runtime.question_status().pending == 0
    assert not runtime.ask("table", QUESTION).result(PATIENCE_S).error


def test_costs_that_cannot_be_corrected_lose_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages came and went unheard once: whoever had asked waited for ever."""
    monkeypatch.setattr(planner, "OBSERVE_PERIOD_S", 0.0)
    monkeypatch.setattr(CostLearner, "observe", lambda *_: 1 / 0)
    runtime = start()
    show(runtime, "table", clip(1).frames(2))
    assert not runtime.ask("table", QUESTION).result(PATIENCE_S).error
    assert runtime.question_status().pending == 0
    assert "costs could not be corrected" in caplog.text
    assert "the coordinator failed" not in caplog.text


def test_what_follows_a_message_may_fail_without_losing_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = start()
    with monkeypatch.context() as broken:
        broken.setattr(runtime._loaded().tracing, "tick", lambda: 1 / 0)
        show(runtime, "table", clip(1).frames(2))
        assert not runtime.ask("table", QUESTION).result(PATIENCE_S).error
    assert runtime.question_status().pending == 0
