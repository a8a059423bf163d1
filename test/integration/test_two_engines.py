"""A node with two engines, the second in a process of its own, over real ROS 2 with the demo model.

What is bit-equal and what is lost when is tested below ROS; here it is that goals, services, topics
and diagnostics reach all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.msg import PlacementStatus
from edge_vlm_ros.srv import EvictState, ListEngines, MoveIngestion
from harness import TWO_ENGINES, World, heard, level_of, set_parameter, wait_for, world
from test_ask import ask


@pytest.fixture(scope="module")
def two() -> Iterator[World]:
    """Shared by the tests that leave it as it was: loading takes most of the time."""
    with world(**TWO_ENGINES) as made:
        made.start()
        made.frames("table", 3)
        wait_published(made)
        yield made


def wait_published(made: World) -> None:
    def published() -> bool:
        assert made.node.runtime is not None
        status = made.node.runtime.stream_status("table")
        return status.published == status.registered

    wait_for(published, "the newest version")


def answer(made: World, **goal: Any) -> AskQuestion.Result:
    ended, result = made.client.ask(stream="table", **goal).wait_end()
    assert ended == "succeeded", result.error
    return result


def where(result: AskQuestion.Result) -> tuple[str, str, str]:
    metrics = result.metrics
    return metrics.path, metrics.prefill_engine, metrics.engine


# ------------------------------------------------------------------------- questions
def test_every_path_and_engine_can_be_forced_and_gives_the_same_answer(two: World) -> None:
    placements = heard(two, PlacementStatus, "/edge_vlm/placement")
    before = wait_for(lambda: placements and placements[-1], "the placement")
    at_home = answer(two, engine="cpu")
    assert where(at_home) == ("local", "cpu", "cpu")
    assert at_home.metrics.reused_tokens == at_home.metrics.history_tokens > 0
    results = {}
    for path in ("replay", "import"):
        two.client.call(EvictState, "evict_state", stream="table", engine="second")
        results[path] = answer(two, engine="second", path=path)
        assert where(results[path]) == (path, "second", "second")
    assert results["replay"].metrics.replayed_tokens == at_home.metrics.history_tokens
    assert results["import"].metrics.imported_tokens == at_home.metrics.history_tokens
    assert results["import"].metrics.moved_bytes > 0 == results["replay"].metrics.moved_bytes
    resident = answer(two, engine="second", path="local")
    assert where(resident) == ("local", "second", "second")
    handed = answer(two, engine="second", prefill_engine="cpu")
    assert where(handed) == ("local", "cpu", "second")
    assert handed.metrics.moved_bytes > 0
    for result in (*results.values(), resident, handed):
        assert result.token_ids == at_home.token_ids
        assert result.context == at_home.context

    def questions(placement: PlacementStatus) -> tuple[int, int, int]:
        return placement.path_local, placement.path_import, placement.path_replay

    asked = sum(questions(before)) + 5
    after = wait_for(
        lambda: sum(questions(placements[-1])) >= asked and placements[-1], "the counters"
    )
    more = [now - then for now, then in zip(questions(after), questions(before), strict=True)]
    assert (more, after.handoffs - before.handoffs) == ([3, 1, 1], 1)
    assert after.imported_bytes > before.imported_bytes
    assert {(probe.source, probe.destination) for probe in after.probes} == {
        ("cpu", "second"),
        ("second", "cpu"),
    }
    assert {(resident.engine, resident.version.stream) for resident in after.residents} == {
        ("cpu", "table"),
        ("second", "table"),
    }


@pytest.mark.parametrize(
    ("goal", "reason", "part"),
    [
        ({"engine": "third"}, "unknown_engine", "'third'; there are: cpu, second"),
        ({"engine": "cpu", "prefill_engine": "third"}, "unknown_engine", "'third'"),
        ({"path": "teleport"}, "bad_options", "teleport"),
        ({"prefill_engine": "cpu"}, "bad_options", "name both"),
    ],
)
def test_engines_and_paths_that_are_none_are_rejected(
    two: World, goal: dict[str, Any], reason: str, part: str
) -> None:
    two.client.rejections.clear()
    assert not two.client.ask(**goal).wait_accepted()
    rejection = wait_for(lambda: two.client.rejections, "the rejection")[0]
    assert rejection.reason == reason and part in rejection.text


def test_the_ask_verb_takes_engines_and_path_and_names_them(two: World) -> None:
    goal = ("--stream", "table", "--engine", "second", "--prefill-engine", "cpu")
    code, out, error = ask("Where is the red cup?", *goal, "--path", "local")
    assert (code, error) == (0, "")
    assert "; local on cpu -> second; saw " in out.splitlines()[-1]
    code, _, error = ask("Where is the red cup?", "--engine", "third")
    assert code == 4 and "there are: cpu, second" in error


# ------------------------------------------------------------------------- moving state
def test_ingestion_moves_while_the_camera_goes_on(two: World) -> None:
    runtime = two.node.runtime
    assert runtime is not None
    first = runtime.stream_status("table").frames_registered
    moved = two.client.call(MoveIngestion, "move_ingestion", stream="table", engine="second")
    assert moved.success, moved.message
    try:
        two.frames("table", 2, first=first)
        result = answer(two, engine="second")
        assert where(result) == ("local", "second", "second")
        assert result.context.last_stamp.sec == first + 2
        assert runtime.stream_status("table").ingest_engine == "second"
    finally:
        assert set_parameter(two, "table.ingest_engine", "cpu") == (True, "")
    two.frames("table", 1, first=first + 2)
    back = answer(two, engine="cpu")
    assert back.metrics.engine == "cpu" and back.context.last_stamp.sec == first + 3


def test_state_is_given_up_and_comes_back_when_it_is_needed(two: World) -> None:
    expected = answer(two)
    assert answer(two, engine="second").token_ids == expected.token_ids
    gone = two.client.call(EvictState, "evict_state", stream="table", engine="second")
    assert gone.success, gone.message
    again = two.client.call(EvictState, "evict_state", stream="table", engine="second")
    assert not again.success and "nothing given up" in again.message
    unknown = two.client.call(EvictState, "evict_state", stream="table", engine="third")
    assert not unknown.success and "third" in unknown.message
    result = answer(two, engine="second")
    assert result.metrics.path in ("import", "replay")
    assert result.token_ids == expected.token_ids


def test_an_answer_does_not_change_when_every_engine_has_given_up_its_state(two: World) -> None:
    expected = answer(two, engine="cpu")
    answer(two, engine="second")
    for engine in ("cpu", "second"):
        gone = two.client.call(EvictState, "evict_state", stream="table", engine=engine)
        assert gone.success, gone.message
    result = answer(two, engine="second", path="replay")
    assert result.token_ids == expected.token_ids
    assert result.context == expected.context
    assert answer(two).token_ids == expected.token_ids


# ------------------------------------------------------------------------- watching
def test_engines_tell_what_they_are_and_hold(two: World) -> None:
    for name in ("cpu", "second"):  # what has been given up comes back when it is asked for
        answer(two, engine=name)
    engines = two.client.call(ListEngines, "list_engines").engines
    assert [engine.engine for engine in engines] == ["cpu", "second"]
    for engine in engines:
        assert (engine.state, engine.error, engine.failures) == ("ready", "", 0)
        assert engine.retry_in_s == -1.0
        assert list(engine.resident_streams) == ["table"]
        assert engine.memory_kv_bytes > 0 and engine.memory_rss_bytes > 0
        assert 0 < engine.memory_pss_bytes <= engine.memory_rss_bytes
    assert engines[0].memory_rss_bytes != engines[1].memory_rss_bytes, "two processes"
    assert engines[0].exported_bytes > 0 and engines[1].imported_bytes > 0
    diagnostics = heard(two, DiagnosticArray, "/diagnostics")
    for name in ("engine cpu", "engine second", "placement"):
        level = wait_for(lambda n=name: level_of(diagnostics, f"edge_vlm: {n}"), name)[0]
        assert level == 0, name
