"""Values to messages and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.msg import (
    ContextVersion,
    Metrics,
    Sampling,
)
from edge_vlm_ros.msg import (
    EngineStatus as EngineStatusMessage,
)
from edge_vlm_ros.msg import (
    PlacementStatus as PlacementStatusMessage,
)
from edge_vlm_ros.msg import Plan as PlanMessage
from edge_vlm_ros.msg import PlanningStatus as PlanningStatusMessage
from status_samples import PLANNED, PLANNING
from std_msgs.msg import Header

from edge_vlm_ros.engines.protocol import EngineStatus
from edge_vlm_ros.history import (
    NewestPublished,
    NewestRegistered,
    Stamp,
    Version,
    VersionBinding,
)
from edge_vlm_ros.ros.convert import (
    answer_message,
    ask_options,
    context_message,
    engine_status_message,
    loading_engine_message,
    metrics_message,
    placement_message,
    plan_message,
    planning_message,
    result_message,
    stream_status_message,
    version_message,
)
from edge_vlm_ros.ros.stamps import ns_to_stamp, stamp_to_ns
from edge_vlm_ros.runtime import (
    AnswerMetrics,
    AnswerResult,
    AskOptions,
    ContextUsed,
    FinishReason,
    QuestionRejected,
    SamplingParameters,
)
from edge_vlm_ros.runtime.status import (
    EngineReading,
    LookupCounts,
    PairProbe,
    PlacementStatus,
    Resident,
    StreamStatus,
)


def numbered(kind: type, **given: Any) -> Any:
    """A ``kind`` with a different number in every field but those ``given``."""
    for number, field in enumerate(dataclasses.fields(kind), start=1):
        given.setdefault(field.name, float(number) if field.type == "float" else number)
    return kind(**given)


CONTEXT = ContextUsed(
    version=Version("table", 2, 7),
    frames=3,
    first_stamp_ns=5 * 10**9 + 1,
    last_stamp_ns=6 * 10**9 + 2,
    turns=1,
    tokens=180,
    identity=bytes.fromhex("00ff10"),
)
METRICS = numbered(AnswerMetrics, engine="second", prefill_engine="cpu", path="import")
RESULT = AnswerResult(
    answer_id=9,
    stream="table",
    question="Where?",
    text="Left.",
    finish_reason=FinishReason.STOP_STRING,
    error="",
    token_ids=(3, 1, 2),
    context=CONTEXT,
    metrics=METRICS,
    committed=True,
)
HEADER = Header(stamp=ns_to_stamp(42))


@pytest.mark.parametrize("ns", [0, 1, 10**9 - 1, 1_800_000_000_123_456_789, -1])
def test_stamps_keep_every_nanosecond(ns: int) -> None:
    assert stamp_to_ns(ns_to_stamp(ns)) == ns


def test_a_time_beyond_ros_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        ns_to_stamp(2**31 * 10**9)


def test_versions() -> None:
    assert version_message(Version("table", 2, 7)) == ContextVersion(stream="table", epoch=2, n=7)
    assert version_message(None) == ContextVersion()


# ------------------------------------------------------------------------- goals
def test_a_plain_goal_has_the_plain_options() -> None:
    assert ask_options(AskQuestion.Goal(question="Where?"), "table") == AskOptions()


def test_all_of_a_goal_arrives() -> None:
    goal = AskQuestion.Goal(
        max_tokens=12,
        stop=["a", "b"],
        deadline_s=1.5,
        commit=True,
        engine="second",
        prefill_engine="cpu",
        path="replay",
        sampling=Sampling(
            temperature=0.5, top_k=4, top_p=0.25, min_p=0.125, repeat_penalty=1.5, seed=7
        ),
    )
    assert ask_options(goal, "table") == AskOptions(
        max_tokens=12,
        stop=("a", "b"),
        deadline_s=1.5,
        commit=True,
        engine="second",
        prefill_engine="cpu",
        path="replay",
        sampling=SamplingParameters(0.5, 4, 0.25, 0.125, 1.5, 7),
    )


@pytest.mark.parametrize(
    ("fields", "binding"),
    [
        ({"binding": AskQuestion.Goal.BIND_REGISTERED}, NewestRegistered()),
        ({"binding": AskQuestion.Goal.BIND_PUBLISHED}, NewestPublished()),
        (
            {"binding": AskQuestion.Goal.BIND_STAMP, "stamp": ns_to_stamp(7 * 10**9 + 5)},
            Stamp(7 * 10**9 + 5),
        ),
        (
            {"binding": AskQuestion.Goal.BIND_VERSION, "version": ContextVersion(epoch=1, n=4)},
            VersionBinding(1, 4),
        ),
    ],
)
def test_bindings(fields: dict[str, Any], binding: object) -> None:
    assert ask_options(AskQuestion.Goal(**fields), "table").binding == binding


@pytest.mark.parametrize(
    ("fields", "reason", "part"),
    [
        ({"binding": 4}, "bad_binding", "binding 4"),
        (
            {
                "binding": AskQuestion.Goal.BIND_VERSION,
                "version": ContextVersion(stream="shelf", epoch=1, n=4),
            },
            "bad_binding",
            "'shelf'",
        ),
        ({"deadline_s": -1.0}, "bad_options", "deadline_s"),
        ({"deadline_s": float("inf")}, "bad_options", "deadline_s"),
        ({"sampling": Sampling(top_p=7.0)}, "bad_options", "top_p"),
        ({"sampling": Sampling(temperature=float("nan"))}, "bad_options", "temperature"),
    ],
)
def test_goals_that_mean_nothing_are_rejected(
    fields: dict[str, Any], reason: str, part: str
) -> None:
    with pytest.raises(QuestionRejected, match=part) as caught:
        ask_options(AskQuestion.Goal(**fields), "table")
    assert caught.value.reason == reason


# ------------------------------------------------------------------------- answers
def test_the_context_of_an_answer() -> None:
    message = context_message(CONTEXT)
    assert message.version.n == 7 and message.frames == 3 and message.turns == 1
    assert stamp_to_ns(message.first_stamp) == CONTEXT.first_stamp_ns
    assert stamp_to_ns(message.last_stamp) == CONTEXT.last_stamp_ns
    assert message.tokens == 180 and message.identity == "00ff10"


def test_every_metric_arrives_in_its_field() -> None:
    message = metrics_message(RESULT, HEADER, energy_j=2.5)
    for field in dataclasses.fields(AnswerMetrics):
        assert getattr(message, field.name) == getattr(METRICS, field.name), field.name
    assert (message.stream, message.finish_reason) == ("table", "stop_string")
    assert message.energy_j == 2.5
    filled = {field.name for field in dataclasses.fields(AnswerMetrics)}
    assert set(Metrics.get_fields_and_field_types()) == filled | {
        "header",
        "stream",
        "finish_reason",
        "energy_j",
    }


def test_metrics_are_flat_numbers_that_can_be_plotted() -> None:
    texts = ("stream", "engine", "prefill_engine", "path", "finish_reason")
    for name, kind in Metrics.get_fields_and_field_types().items():
        if name not in ("header", *texts):
            assert kind in ("double", "uint32", "uint64"), name


def test_answers_and_results() -> None:
    answer = answer_message(RESULT, HEADER)
    result = result_message(RESULT, HEADER)
    for message in (answer, result):
        assert (message.answer_id, message.text, message.error) == (9, "Left.", "")
        assert message.finish_reason == "stop_string"
        assert message.context == context_message(CONTEXT)
    assert (answer.stream, answer.question, answer.committed) == ("table", "Where?", True)
    assert list(result.token_ids) == [3, 1, 2]
    assert result.metrics == metrics_message(RESULT, HEADER)
    assert result_message(RESULT, HEADER, 2.5).metrics == metrics_message(RESULT, HEADER, 2.5)


# ------------------------------------------------------------------------- status
def test_the_status_of_a_stream() -> None:
    names = ("registered", "encoded", "published")
    versions = {name: Version("table", 1, n) for n, name in enumerate(names)}
    status = numbered(StreamStatus, stream="table", ingest_engine="cpu", **versions)
    message = stream_status_message(status, HEADER)
    for name in names:
        assert getattr(message, name) == version_message(versions[name]), name
    for field in dataclasses.fields(StreamStatus):
        if field.name not in names:
            assert getattr(message, field.name) == getattr(status, field.name), field.name


def test_the_status_of_an_engine() -> None:
    status = numbered(EngineStatus, name="cpu", device="CPU", model="demo", exact=True)
    reading = numbered(
        EngineReading,
        status=status,
        state="failed",
        error="lost",
        resident_streams=("table", "shelf"),
    )
    message = engine_status_message(
        reading, HEADER, busy=0.5, embeddings_bytes=77, snapshots_bytes=78
    )
    assert (message.engine, message.busy) == ("cpu", 0.5)
    assert (message.memory_embeddings_bytes, message.memory_snapshots_bytes) == (77, 78)
    assert list(message.resident_streams) == ["table", "shelf"]
    for value, others in ((status, ("name", "busy_s")), (reading, ("status", "resident_streams"))):
        for field in dataclasses.fields(value):
            if field.name not in others:
                assert getattr(message, field.name) == getattr(value, field.name), field.name


def test_an_engine_that_is_loading_has_the_fields_of_one_that_starts() -> None:
    message = loading_engine_message("cpu", "demo", HEADER)
    assert (message.engine, message.state) == ("cpu", "starting")
    assert message.retry_in_s == -1.0


PLACEMENT = numbered(
    PlacementStatus,
    residents=(Resident("cpu", Version("table", 1, 4), 300, 9000, 1.5, "copy", 2),),
    probes=(PairProbe("cpu", "second", "close", "other arithmetic"),),
    paths={"local": 5, "replay": 6},
    residency=LookupCounts(11, 12),
    prefixes=LookupCounts(13, 14),
    snapshots=LookupCounts(15, 16),
)


def test_the_placement() -> None:
    message = placement_message(PLACEMENT, HEADER)
    assert (message.path_local, message.path_import, message.path_replay) == (5, 0, 6)
    assert (message.residency_hits, message.residency_misses) == (11, 12)
    assert (message.prefix_hits, message.prefix_misses) == (13, 14)
    assert (message.snapshot_hits, message.snapshot_misses) == (15, 16)
    flat = [f.name for f in dataclasses.fields(PlacementStatus) if f.type == "int"]
    for name in flat:
        assert getattr(message, name) == getattr(PLACEMENT, name), name
    (resident,) = message.residents
    assert (resident.engine, resident.version.n, resident.role) == ("cpu", 4, "copy")
    assert (resident.cells, resident.bytes, resident.idle_s, resident.readers) == (
        300,
        9000,
        1.5,
        2,
    )
    (probe,) = message.probes
    assert (probe.source, probe.destination) == ("cpu", "second")
    assert (probe.outcome, probe.detail) == ("close", "other arithmetic")


def test_placement_and_engine_status_can_be_plotted() -> None:
    fields = PlacementStatusMessage.get_fields_and_field_types()
    for name, kind in fields.items():
        if name not in ("header", "residents", "probes"):
            assert kind in ("uint32", "uint64"), name
    rates = [n for n in EngineStatusMessage.get_fields_and_field_types() if n.endswith("bytes_s")]
    assert rates == ["export_bytes_s", "import_bytes_s"]


# ------------------------------------------------------------------------- planning
def test_a_plan_that_was_just_made() -> None:
    message = plan_message(PLANNED, HEADER)
    assert (message.answer_id, message.stream, message.phase) == (7, "table", "planned")
    assert (message.policy, message.objective) == ("sdep", "first_token")
    assert message.reason == "second is idle" and message.chosen == 1
    assert (message.predicted_first_token_s, message.predicted_finished_s) == (1.5, 3.0)
    assert (message.actual_first_token_s, message.actual_finished_s) == (-1.0, -1.0)
    assert (message.first_token_error_s, message.finished_error_s) == (0.0, 0.0)
    assert (message.decided_s, message.finish_reason) == (1.0, "")
    local, chosen, blocked = message.alternatives
    assert (local.path, chosen.path) == ("local", "import")
    assert (chosen.prefill_engine, chosen.decode_engine) == ("second", "cpu")
    times = (chosen.context_s, chosen.first_token_s, chosen.finished_s)
    assert times == (0.25, 0.5, 2.0)
    delays = (chosen.others_s, chosen.ingest_s, chosen.last_s, chosen.share_s)
    assert delays == (0.4, 0.5, 0.25, 0.6)
    assert chosen.score_s == pytest.approx(0.5 + 0.4 + 0.5 + 0.25 + 0.6), "the first token counts"
    assert local.score_s == pytest.approx(1.0 + 0.1 + 0.2 + 0.05 + 0.3)
    assert (chosen.blocked, blocked.blocked) == ("", "KV types differ")


def test_a_plan_that_was_carried_out_has_what_happened() -> None:
    record = dataclasses.replace(
        PLANNED, actual_first_token_s=1.25, actual_finished_s=5.0, finish_reason="stop"
    )
    message = plan_message(record, HEADER)
    assert (message.phase, message.finish_reason) == ("finished", "stop")
    assert (message.actual_first_token_s, message.actual_finished_s) == (1.25, 5.0)
    assert (message.first_token_error_s, message.finished_error_s) == (-0.25, 2.0)
    cancelled = dataclasses.replace(PLANNED, actual_finished_s=2.0, finish_reason="cancelled")
    message = plan_message(cancelled, HEADER)
    assert (message.phase, message.actual_first_token_s) == ("finished", -1.0)


def test_the_planning() -> None:
    message = planning_message(PLANNING, HEADER)
    assert (message.policy, message.objective) == ("sdep", "first_token")
    assert (message.sustained_load, message.question_rate_hz) == (True, 0.1)
    assert (message.decisions, message.decision_mean_us, message.decision_max_us) == (40, 120, 900)
    assert (message.first_token_predictions, message.first_token_error) == (20, 0.25)
    assert (message.finished_predictions, message.finished_error) == (19, 0.5)
    assert list(message.engines) == ["cpu", "second"]
    assert list(message.shares) == [0.75, 0.25] and list(message.routed) == [0.5, 0.5]
    assert list(message.utilisation) == [0.9, 1.2]
    assert list(message.cost_engines) == ["cpu", "onnx"]
    assert list(message.cost_activities) == ["decode", "encode"]
    assert list(message.cost_steps) == [64, 9] and list(message.cost_errors) == [0.125, 2.0]


def test_times_of_plans_have_their_unit_in_the_name() -> None:
    for kind in (PlanMessage, PlanningStatusMessage):
        for name, of in kind.get_fields_and_field_types().items():
            if of == "double":
                assert name.endswith(("_s", "_us", "_hz", "_error")), name
