"""Several engines: any of them can answer about any stream, however the history gets there."""

from __future__ import annotations

from itertools import cycle

import pytest
from helpers import (
    PATIENCE_S,
    Start,
    changes,
    clip,
    engine_of,
    eventually,
    hold_decoding,
    hold_ingestion,
    settle,
    show,
)
from two_engines import QUESTION, TWO, ask, path

from edge_vlm_ros.engines.protocol import Origin
from edge_vlm_ros.runtime import (
    AskOptions,
    FinishReason,
    PlacementConfig,
    QuestionRejected,
    Runtime,
    SamplingParameters,
    StreamConfig,
    UnknownEngineError,
)
from edge_vlm_ros.runtime import probe as probing


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
    two.move_ingestion("table", "second")
    show(two, "table", frames[-1:], change.stop)
    settle(two)
    result = ask(two, text=change.text, engine="second")
    assert (result.text, path(result)) == (change.after, ("second", "second", "local"))
    version = two.stream_status("table").published
    record = two._loaded().trunks.table.get("second", "table", version.epoch)
    assert record is not None
    assert record.tokens_by_origin(0, version.n)[Origin.COMPUTED] == 52, "one frame"
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
        shelf_answer = ask(runtime, "shelf", engine="second")
        assert path(shelf_answer) == ("second", "second", "local")
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
    eventually(lambda: engine_of(runtime).status().cells_used == tokens, "shared cells")
    assert runtime.placement_status().prefixes.hits >= 1
    assert ask(runtime, "shelf").token_ids == expected.token_ids
    more = clip(2).frames(6)[5:]
    for stream in ("table", "shelf"):
        show(runtime, stream, more if stream == "shelf" else clip(1).frames(6)[5:], 5)
    settle(runtime)
    # The counter is read after a step, its events come during it.
    eventually(lambda: engine_of(runtime).status().cells_used == tokens + 2 * 52)
    runtime.reset("table")
    settle(runtime)
    alone = ask(runtime, "shelf")
    runtime.evict("shelf", "cpu")
    assert ask(runtime, "shelf", path="replay").token_ids == alone.token_ids


# -------------------------------------------------------------------------------- arithmetic
def test_engines_are_equal_only_if_they_compute_the_same_kv(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same few tokens after a move are not enough: a running answer could change on its way."""

    def outcomes(runtime: Runtime) -> tuple[set[str], bool]:
        found = {probe.outcome for probe in runtime.placement_status().probes}
        return found, runtime._loaded().slots.are_equal("cpu", "second")

    assert outcomes(start(engines=TWO)) == ({"equal"}, True)
    # What each engine has computed is compared first, then what was moved with what came out.
    same = cycle((False, True))
    monkeypatch.setattr(probing, "_equal_rows", lambda one, other: next(same))
    assert outcomes(start(engines=TWO)) == ({"close"}, False)
