"""Values to messages and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.msg import ContextVersion, Metrics, Sampling
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
    metrics_message,
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
from edge_vlm_ros.runtime.status import StreamStatus

CONTEXT = ContextUsed(
    version=Version("table", 2, 7),
    frames=3,
    first_stamp_ns=5 * 10**9 + 1,
    last_stamp_ns=6 * 10**9 + 2,
    turns=1,
    tokens=180,
    identity=bytes.fromhex("00ff10"),
)
METRICS = AnswerMetrics(
    engine="cpu",
    **{
        field.name: float(number) if field.type == "float" else number
        for number, field in enumerate(dataclasses.fields(AnswerMetrics), start=1)
        if field.name != "engine"
    },
)
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
        sampling=Sampling(
            temperature=0.5, top_k=4, top_p=0.25, min_p=0.125, repeat_penalty=1.5, seed=7
        ),
    )
    assert ask_options(goal, "table") == AskOptions(
        max_tokens=12,
        stop=("a", "b"),
        deadline_s=1.5,
        commit=True,
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
    message = metrics_message(RESULT, HEADER)
    for field in dataclasses.fields(AnswerMetrics):
        assert getattr(message, field.name) == getattr(METRICS, field.name), field.name
    assert (message.stream, message.finish_reason) == ("table", "stop_string")
    filled = {field.name for field in dataclasses.fields(AnswerMetrics)}
    assert set(Metrics.get_fields_and_field_types()) == filled | {
        "header",
        "stream",
        "finish_reason",
    }


def test_metrics_are_flat_numbers_that_can_be_plotted() -> None:
    for name, kind in Metrics.get_fields_and_field_types().items():
        if name not in ("header", "stream", "engine", "finish_reason"):
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


# ------------------------------------------------------------------------- status
def test_the_status_of_a_stream() -> None:
    versions = {name: Version("table", 1, n) for n, name in enumerate(("registered", "encoded"))}
    numbers = {
        field.name: float(n) if field.type == "float" else n
        for n, field in enumerate(dataclasses.fields(StreamStatus))
        if field.name not in ("stream", "published", *versions)
    }
    status = StreamStatus(stream="table", published=Version("table", 1, 5), **versions, **numbers)
    message = stream_status_message(status, HEADER)
    assert message.registered.n == 0 and message.encoded.n == 1 and message.published.n == 5
    for name, number in numbers.items():
        if name != "max_pending_frames":
            assert getattr(message, name) == number, name


def test_the_status_of_an_engine() -> None:
    texts = {"name": "cpu", "device": "CPU", "model": "demo", "state": "ready"}
    numbers = {
        field.name: float(n) if field.type == "float" else n
        for n, field in enumerate(dataclasses.fields(EngineStatus))
        if field.name not in (*texts, "exact")
    }
    status = EngineStatus(exact=True, **texts, **numbers)
    message = engine_status_message(status, HEADER, busy=0.5, embeddings_bytes=77)
    assert (message.engine, message.device, message.model) == ("cpu", "CPU", "demo")
    assert message.exact and message.busy == 0.5 and message.memory_embeddings_bytes == 77
    for name, number in numbers.items():
        if name != "busy_s":
            assert getattr(message, name) == number, name
