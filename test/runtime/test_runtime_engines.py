"""Several engines: any of them can answer about any stream, however the history gets there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from helpers import (
    PATIENCE_S,
    Gate,
    Start,
    changes,
    clip,
    demo_config,
    engine_of,
    eventually,
    hold_decoding,
    hold_ingestion,
    settle,
    show,
)

from edge_vlm_ros.engines.errors import ComputeError, ImportRefusedError
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AskOptions,
    EngineConfig,
    FinishReason,
    HistoryConfig,
    PlacementConfig,
    QuestionLimits,
    QuestionRejected,
    Runtime,
    RuntimeConfig,
    RuntimeListener,
    SamplingParameters,
    StreamConfig,
    UnknownEngineError,
)

QUESTION = "Describe the scene."
TWO = (EngineConfig(name="cpu", n_threads=1), EngineConfig(name="second", n_threads=1))


@pytest.fixture
def two(start: Start) -> Runtime:
    """Two engines on the CPU; ``table`` has been shown six frames, which ``cpu`` holds."""
    runtime = start("table", "shelf", engines=TWO)
    show(runtime, "table", clip(1).frames(6))
    settle(runtime)
    return runtime


def ask(
    runtime: Runtime, stream: str = "table", text: str = QUESTION, **options: object
) -> AnswerResult:
    result = runtime.ask(stream, text, AskOptions(**options)).result(PATIENCE_S)  # type: ignore[arg-type]
    assert not result.error
    return result


def path(result: AnswerResult) -> tuple[str, str, str]:
    return result.metrics.prefill_engine, result.metrics.engine, result.metrics.path


# -------------------------------------------------------------------------------- paths
def test_the_engine_that_holds_the_history_answers_by_default(two: Runtime) -> None:
    assert path(ask(two)) == ("cpu", "cpu", "local")
    assert two.placement_status().residency.hits == 1


def test_another_engine_imports_what_it_lacks(two: Runtime) -> None:
    expected = ask(two)
    first = ask(two, engine="second")
    assert path(first) == ("second", "second", "import")
    assert first.metrics.imported_tokens == first.context.tokens
    assert first.metrics.moved_bytes > 0 and first.metrics.state_ms > 0
    again = ask(two, engine="second")
    assert path(again) == ("second", "second", "local") and again.metrics.moved_bytes == 0
    show(two, "table", clip(1).frames(8)[6:], 6)
    settle(two)
    more = ask(two, engine="second", path="import")
    assert path(more)[2] == "import"
    assert more.metrics.imported_tokens == 2 * 52
    assert more.metrics.reused_tokens == first.context.tokens
    assert first.token_ids == again.token_ids == expected.token_ids
    assert more.token_ids == ask(two, engine="cpu").token_ids
    status = two.placement_status()
    assert (status.full_imports, status.delta_imports, status.failed_imports) == (1, 1, 0)
    assert status.paths == {"local": 3, "import": 2, "replay": 0}


def test_replay_computes_what_the_engine_lacks(two: Runtime) -> None:
    expected = ask(two)
    whole = ask(two, engine="second", path="replay")
    assert path(whole)[2] == "replay"
    assert whole.metrics.replayed_tokens == whole.context.tokens
    show(two, "table", clip(1).frames(7)[6:], 6)
    settle(two)
    part = ask(two, engine="second", path="replay")
    assert (part.metrics.replayed_tokens, part.metrics.reused_tokens) == (52, whole.context.tokens)
    assert whole.token_ids == expected.token_ids
    assert part.token_ids == ask(two, engine="cpu").token_ids
    assert two.placement_status().exported_bytes == 0


@pytest.mark.parametrize(("prefill", "decode"), [("cpu", "second"), ("second", "cpu")])
def test_handoff(two: Runtime, prefill: str, decode: str) -> None:
    expected = ask(two)
    before = engine_of(two, decode).status().prefill_tokens
    result = ask(two, engine=decode, prefill_engine=prefill)
    assert path(result)[:2] == (prefill, decode)
    assert (result.token_ids, result.text) == (expected.token_ids, expected.text)
    assert two.placement_status().handoffs == 1
    assert engine_of(two, decode).status().prefill_tokens == before, "nothing is computed twice"


def test_the_first_engine_is_free_after_a_handoff(two: Runtime) -> None:
    with hold_decoding(two, "second") as gate:
        answer = two.ask("table", QUESTION, AskOptions(engine="second", prefill_engine="cpu"))
        gate.wait_until_reached()
        status = engine_of(two).status()
        assert (status.running_answers, status.waiting_answers, status.cells_reserved) == (0, 0, 0)
        gate.open()
    assert answer.result(PATIENCE_S).finish_reason is FinishReason.STOP


def test_an_answer_of_one_token_is_not_handed_off(two: Runtime) -> None:
    result = ask(two, engine="second", prefill_engine="cpu", max_tokens=1)
    assert result.finish_reason is FinishReason.LENGTH and len(result.token_ids) == 1
    assert two.placement_status().handoffs == 0


@pytest.mark.parametrize(
    "options", [{}, {"path": "import"}, {"path": "replay"}, {"prefill_engine": "cpu"}]
)
def test_sampling_is_the_same_on_every_path(two: Runtime, options: dict[str, str]) -> None:
    sampling = SamplingParameters(temperature=8.0, top_k=40, repeat_penalty=1.1, seed=11)
    expected = ask(two, sampling=sampling)
    assert ask(two, sampling=sampling, engine="second", **options).token_ids == expected.token_ids
    assert expected.token_ids != ask(two).token_ids


def test_frames_before_the_question_reach_the_other_engine(two: Runtime) -> None:
    """They are being ingested while the question, which goes to the other engine, waits."""
    change = changes(1)[0]
    two.reset("table")
    for options in ({"path": "import"}, {"path": "replay"}, {}):
        two.reset("table")
        show(two, "table", change.clip.frames(change.stop))
        with hold_ingestion(two) as gate:
            show(two, "table", change.clip.frames(change.stop + 1)[-1:], change.stop)
            answer = two.ask("table", change.text, AskOptions(engine="second", **options))
            gate.wait_until_reached()
            gate.open()
            assert answer.result(PATIENCE_S).text == change.after


# -------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("options", "reason", "text"),
    [
        (AskOptions(engine="gpu"), "unknown_engine", "no engine 'gpu'; there are: cpu, second"),
        (AskOptions(engine="cpu", prefill_engine="x"), "unknown_engine", "no engine 'x'"),
        (AskOptions(prefill_engine="cpu"), "bad_options", "name both"),
        (AskOptions(path="teleport"), "bad_options", "local, import, replay"),
        (AskOptions(engine="second", path="local"), "path_impossible", "does not hold"),
    ],
)
def test_what_cannot_be_done_is_refused(
    two: Runtime, options: AskOptions, reason: str, text: str
) -> None:
    with pytest.raises(QuestionRejected, match=text) as rejection:
        two.ask("table", QUESTION, options)
    assert rejection.value.reason == reason
    assert path(ask(two)) == ("cpu", "cpu", "local")


def test_unknown_engines_are_named(two: Runtime) -> None:
    with pytest.raises(UnknownEngineError, match="no engine 'gpu'; there are: cpu, second"):
        two.move_ingestion("table", "gpu")
    with pytest.raises(UnknownEngineError):
        two.evict("table", "gpu")


# -------------------------------------------------------------------------------- ingestion
def test_ingestion_moves_with_what_has_been_computed(two: Runtime) -> None:
    change = changes(1)[0]
    two.reset("table")
    frames = change.clip.frames(change.stop + 1)
    show(two, "table", frames[:-1])
    settle(two)
    ingested = engine_of(two, "second").status().ingest_tokens
    two.move_ingestion("table", "second")
    show(two, "table", frames[-1:], change.stop)
    settle(two)
    result = ask(two, text=change.text)
    assert (result.text, path(result)) == (change.after, ("second", "second", "local"))
    assert engine_of(two, "second").status().ingest_tokens == ingested + 52
    assert two.stream_status("table").ingest_engine == "second"
    assert two.stream_status("shelf").ingest_engine == "cpu"


def test_one_engine_ingests_while_another_answers(start: Start) -> None:
    shelf = StreamConfig("shelf", max_pending_frames=64, ingest_engine="second")
    runtime = start("table", shelf, engines=TWO)
    show(runtime, "table", clip(1).frames(3))
    settle(runtime)
    with hold_decoding(runtime) as gate:
        answer = runtime.ask("table", QUESTION)
        gate.wait_until_reached()
        show(runtime, "shelf", clip(2).frames(3))
        eventually(lambda: runtime.stream_status("shelf").published.n == 4)
        assert path(ask(runtime, "shelf")) == ("second", "second", "local")
        gate.open()
    assert answer.result(PATIENCE_S).finish_reason is FinishReason.STOP


def test_an_evicted_history_comes_back_from_host_memory(two: Runtime) -> None:
    expected = ask(two)
    assert two.evict("table", "cpu") == 1
    eventually(lambda: two.placement_status().snapshot_entries)
    result = ask(two)
    assert path(result) == ("cpu", "cpu", "import") and result.token_ids == expected.token_ids
    status = two.placement_status()
    assert (status.snapshots.hits, status.evicted_trunks) == (1, 1)
    assert 0 < status.snapshot_bytes <= status.max_snapshot_bytes


def test_what_is_wanted_again_while_it_is_being_evicted_is_not_computed(two: Runtime) -> None:
    expected = ask(two)
    for _ in range(5):
        two.evict("table", "cpu")
        result = ask(two)
        assert path(result)[2] == "import" and result.token_ids == expected.token_ids


def test_without_host_memory_it_is_replayed(start: Start) -> None:
    none = PlacementConfig(snapshot_entries=0, snapshot_bytes=0)
    runtime = start("table", placement=none)
    show(runtime, "table", clip(1).frames(6))
    settle(runtime)
    expected = ask(runtime)
    runtime.evict("table", "cpu")
    result = ask(runtime)
    assert path(result) == ("cpu", "cpu", "replay") and result.token_ids == expected.token_ids
    assert result.metrics.replayed_tokens == result.context.tokens


def test_a_stream_that_repeats_another_reuses_what_it_computed(start: Start) -> None:
    runtime = start("table", "shelf")
    show(runtime, "table", clip(1).frames(5))
    settle(runtime)
    expected = ask(runtime)
    before = engine_of(runtime).status().ingest_tokens
    show(runtime, "shelf", clip(1).frames(5))
    settle(runtime)
    ingested = engine_of(runtime).status().ingest_tokens
    assert ingested == before, "not one frame was computed again"
    tokens = runtime.stream_status("table").tokens
    assert engine_of(runtime).status().cells_used == tokens, "both streams share the same cells"
    assert runtime.placement_status().prefixes.hits >= 1
    assert ask(runtime, "shelf").token_ids == expected.token_ids
    more = clip(2).frames(6)[5:]
    for stream in ("table", "shelf"):
        show(runtime, stream, more if stream == "shelf" else clip(1).frames(6)[5:], 5)
    settle(runtime)
    assert engine_of(runtime).status().cells_used == tokens + 2 * 52
    runtime.reset("table")
    settle(runtime)
    alone = ask(runtime, "shelf")
    runtime.evict("shelf", "cpu")
    assert ask(runtime, "shelf", path="replay").token_ids == alone.token_ids


# -------------------------------------------------------------------------------- budgets
TIGHT_QUESTIONS = QuestionLimits(
    max_question_tokens=32, default_max_tokens=48, max_answer_tokens=48
)
TIGHT_HISTORY = HistoryConfig(max_frames=4, max_turns=0)


def tight_config(n_trunks: float, **settings: Any) -> RuntimeConfig:
    """Cells for ``n_trunks`` full histories and one answer."""
    cells = int(n_trunks * (3 + 4 * 52)) + 32 + 48
    engine = EngineConfig(name="cpu", n_threads=1, n_ctx=cells)
    return demo_config(
        "table",
        "shelf",
        "door",
        history=TIGHT_HISTORY,
        questions=TIGHT_QUESTIONS,
        engine=engine,
        **settings,
    )


def roomy_answers(start: Start, questions: list[tuple[str, int]]) -> list[tuple[int, ...]]:
    runtime = start("table", "shelf", "door", history=TIGHT_HISTORY, questions=TIGHT_QUESTIONS)
    return [
        (show(runtime, stream, clip(seed).frames(4)), ask(runtime, stream).token_ids)[1]
        for stream, seed in questions
    ]


@pytest.mark.parametrize("snapshot_bytes", [0, 1 << 20])
def test_histories_take_turns_on_an_engine_that_holds_one(
    start: Start, snapshot_bytes: int
) -> None:
    streams = [("table", 1), ("shelf", 2), ("door", 3)]
    expected = roomy_answers(start, streams)
    placement = PlacementConfig(snapshot_bytes=snapshot_bytes)
    runtime = start(config=tight_config(1.0, placement=placement))
    for stream, seed in streams:
        show(runtime, stream, clip(seed).frames(4))
    for _ in range(2):
        for (stream, _), token_ids in zip(streams, expected, strict=True):
            assert ask(runtime, stream).token_ids == token_ids
    status = runtime.placement_status()
    assert status.evicted_trunks >= 4  # llama.cpp rounds n_ctx up: two of the three fit
    assert status.snapshot_bytes <= snapshot_bytes
    assert (status.paths["import"] > 0) == (snapshot_bytes > 0)
    assert engine_of(runtime).status().cells_used <= engine_of(runtime).n_cells


def test_questions_about_more_than_fits_all_get_their_answers(start: Start) -> None:
    streams = [("table", 1), ("shelf", 2), ("door", 3)]
    expected = dict(zip((s for s, _ in streams), roomy_answers(start, streams), strict=True))
    runtime = start(config=tight_config(1.5))
    for stream, seed in streams:
        show(runtime, stream, clip(seed).frames(4))
    asked = [runtime.ask(s, QUESTION) for _ in range(2) for s in ("table", "shelf", "door")]
    for answer in asked:
        result = answer.result(PATIENCE_S)
        assert not result.error and result.token_ids == expected[answer.stream]


def test_frames_are_published_when_the_other_camera_has_been_idle(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_vlm_ros.placement.cell_budget.IDLE_S", 0.3)
    runtime = start(config=tight_config(1.0))
    for stream, seed in (("table", 1), ("shelf", 2), ("door", 3)):
        show(runtime, stream, clip(seed).frames(4))
    for stream in ("table", "shelf", "door"):
        eventually(lambda name=stream: runtime.stream_status(name).published.n == 5, stream)
    evicted = runtime.placement_status().evicted_trunks
    runtime._on_loop(runtime._loaded()._ingest_all)  # as after any change of the engines
    time.sleep(1.0)  # three times as long as it takes to become idle
    assert runtime.placement_status().evicted_trunks == evicted, "they displace each other for ever"


def test_a_cancelled_question_gives_its_room_to_the_next(start: Start) -> None:
    runtime = start(config=tight_config(1.0))
    for stream, seed in (("table", 1), ("shelf", 2)):
        show(runtime, stream, clip(seed).frames(4))
    with hold_ingestion(runtime) as gate:
        first = runtime.ask("table", QUESTION)
        second = runtime.ask("shelf", QUESTION)
        gate.wait_until_reached()
        first.cancel()
        gate.open()
        assert second.result(PATIENCE_S).finish_reason is FinishReason.STOP
    assert first.result(PATIENCE_S).finish_reason is FinishReason.CANCELLED
    assert runtime.question_status().pending == 0


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


# -------------------------------------------------------------------------------- commits
# The engine that is held cannot export meanwhile.
ELSEWHERE = AskOptions(engine="second", path="replay")


@contextmanager
def two_to_commit(start: Start) -> Iterator[tuple[Runtime, Gate, Answer, Answer]]:
    """Two questions to be committed in order of arrival, of which the second is done first."""
    runtime = start("table", engines=TWO, questions=QuestionLimits(commit_order="arrival"))
    show(runtime, "table", clip(1).frames(3))
    settle(runtime)
    with hold_decoding(runtime) as gate:
        first = runtime.ask("table", QUESTION, AskOptions(commit=True))
        gate.wait_until_reached()
        second = runtime.ask("table", "Is there a dog?", replace(ELSEWHERE, commit=True))
        yield runtime, gate, first, second


def test_answers_are_committed_in_the_order_of_the_questions(start: Start) -> None:
    with two_to_commit(start) as (runtime, gate, first, second):
        plain = runtime.ask("table", "Is there a dog?", ELSEWHERE)
        assert plain.result(PATIENCE_S).finish_reason is FinishReason.STOP
        eventually(lambda: engine_of(runtime, "second").status().running_answers == 0)
        with pytest.raises(TimeoutError):
            second.result(0.2)
        assert runtime.stream_status("table").turns == 0
        gate.open()
        assert first.result(PATIENCE_S).committed and second.result(PATIENCE_S).committed
    turns = [line for line in runtime.describe("table") if "turn" in line]
    assert QUESTION in turns[0] and "dog" in turns[1] and len(turns) == 2
    settle(runtime)
    assert ask(runtime).context.turns == 2


def test_a_cancelled_answer_does_not_hold_up_the_next(start: Start) -> None:
    with two_to_commit(start) as (runtime, gate, first, second):
        first.cancel()
        gate.open()
        assert second.result(PATIENCE_S).committed
    assert not first.result(PATIENCE_S).committed
    assert runtime.stream_status("table").turns == 1


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
    assert [reading.health for reading in two.engine_status()] == ["ready", "ready"]


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
