"""The whole node over real ROS 2 with the demo model: answers, ends, and what goes wrong."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import cv2
import pytest
import rclpy
from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.srv import (
    CommitAnswer,
    DescribeStream,
    ListEngines,
    ListStreams,
    ResetStream,
)
from harness import World, image, picture, wait_for, world
from rclpy.context import Context
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage

from edge_vlm_ros.engines.sampling import Sampler
from edge_vlm_ros.vision.onnx_encoder import OnnxEncoder


@pytest.fixture
def table() -> Iterator[World]:
    with world() as made:
        made.start()
        yield made


class Gate:
    """Holds every call of a method until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
        self._open = threading.Event()
        self._open.set()
        original = getattr(owner, method)

        def gated(*arguments: Any) -> Any:
            assert self._open.wait(60.0)
            return original(*arguments)

        monkeypatch.setattr(owner, method, gated)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def encoder_gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch, OnnxEncoder, "encode")
    yield gate
    gate.open()


class SlowSampler:
    """Answers that never end by themselves, a token each few milliseconds; can be held back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, token: int) -> None:
        self.gate = threading.Event()
        self.gate.set()

        def sample(_sampler: Sampler, _context: object, _row: int, _index: int) -> int:
            self.gate.wait(60.0)
            time.sleep(0.005)
            return token

        monkeypatch.setattr(Sampler, "sample", sample)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowSampler]:
    sampler = SlowSampler(monkeypatch, token=100)
    yield sampler
    sampler.gate.set()


# ------------------------------------------------------------------------- answers
def test_answer_streams_as_feedback_and_tokens_and_ends_once(table: World) -> None:
    table.frames("table", 2)
    asked = table.client.ask("Where is the red cup?")
    ended, result = asked.wait_end()
    assert (ended, result.finish_reason, result.error) == ("succeeded", "stop", "")
    assert result.text and result.token_ids
    wait_for(lambda: table.client.tokens and table.client.tokens[-1].last, "the last token")
    wait_for(lambda: table.client.metrics, "the metrics")
    tokens = table.client.tokens
    assert [token.sequence for token in tokens] == list(range(len(tokens)))
    assert "".join(token.delta for token in tokens) == result.text
    assert [token.last for token in tokens].count(True) == 1
    assert result.text.startswith("".join(feedback.delta for feedback in asked.feedback))
    assert result.context.frames == 2
    assert result.context.first_stamp.sec == 1 and result.context.last_stamp.sec == 2
    assert result.context.version.stream == "table"
    assert result.metrics.ttft_ms > 0 and result.metrics.generated_tokens == len(result.token_ids)
    assert table.client.metrics[0].finish_reason == "stop"


def test_services_tell_of_streams_and_change_them(table: World) -> None:
    table.frames("table", 2)
    _, result = table.client.ask().wait_end()
    listed = table.client.call(ListStreams, "list_streams")
    assert (listed.streams, listed.topics) == (["table"], ["/table/image_raw"])
    engines = table.client.call(ListEngines, "list_engines").engines
    assert [engine.engine for engine in engines] == ["cpu"] and engines[0].state == "ready"

    committed = table.client.call(CommitAnswer, "commit_answer", answer_id=result.answer_id)
    assert committed.success, committed.message
    described = table.client.call(DescribeStream, "describe_stream", stream="table")
    assert described.success and described.status.frames == 2 and described.status.turns == 1
    assert any(result.text in item for item in described.items)

    again = table.client.call(CommitAnswer, "commit_answer", answer_id=10**6)
    assert not again.success and again.message
    before = described.status.registered.epoch
    reset = table.client.call(ResetStream, "reset_stream", stream="table")
    assert reset.success and reset.version.epoch > before
    unknown = table.client.call(ResetStream, "reset_stream", stream="nowhere")
    assert not unknown.success and "nowhere" in unknown.message


def test_two_streams_keep_apart_and_an_empty_stream_name_is_refused() -> None:
    with world({"table": "/table/image_raw", "shelf": "/shelf/image_raw"}) as made:
        made.start()
        made.frames("table", 1)
        made.frames("shelf", 2)
        _, table = made.client.ask(stream="table").wait_end()
        _, shelf = made.client.ask(stream="shelf").wait_end()
        assert (table.context.frames, shelf.context.frames) == (1, 2)
        assert not made.client.ask().wait_accepted()
        rejection = wait_for(lambda: made.client.rejections, "the rejection")[0]
        assert rejection.reason == "unknown_stream" and "shelf" in rejection.text


# ------------------------------------------------------------------------- rejections
WRONG_GOALS: list[tuple[dict[str, Any], str]] = [
    ({"question": ""}, "empty_question"),
    ({"question": "where " * 1000}, "question_too_long"),
    ({"stream": "nowhere"}, "unknown_stream"),
    ({"max_tokens": 10**6}, "answer_too_long"),
    ({"binding": AskQuestion.Goal.BIND_STAMP}, "bad_binding"),
    ({"binding": 77}, "bad_binding"),
    ({"deadline_s": float("nan")}, "bad_options"),
]


def test_wrong_goals_are_rejected_with_their_reason(table: World) -> None:
    for goal, reason in WRONG_GOALS:
        table.client.rejections.clear()
        assert not table.client.ask(**{"question": "Where?", **goal}).wait_accepted()
        rejection = wait_for(lambda: table.client.rejections, "the rejection")[0]
        assert (rejection.what, rejection.reason) == ("question", reason)
        assert rejection.text


def test_an_inactive_node_rejects_and_says_what_to_do() -> None:
    with world() as made:
        assert made.client.action.wait_for_server(30.0)
        wait_for(lambda: made.node.outputs.rejections.get_subscription_count(), "the client")
        assert not made.client.ask().wait_accepted()
        rejection = wait_for(lambda: made.client.rejections, "the rejection")[0]
        assert rejection.reason == "inactive"
        assert "ros2 lifecycle set /edge_vlm configure" in rejection.text


# ------------------------------------------------------------------------- ends
def test_cancel_while_the_context_is_waited_for(table: World, encoder_gate: Gate) -> None:
    encoder_gate.shut()
    table.frames("table", 1)
    asked = table.client.ask()
    asked.wait_state("waiting_context")
    assert len(asked.cancel().goals_canceling) == 1
    ended, result = asked.wait_end()
    encoder_gate.open()
    assert (ended, result.finish_reason, result.text) == ("canceled", "cancelled", "")


def test_cancel_in_the_queue_and_while_decoding(slow: SlowSampler) -> None:
    with world(engine__cpu__max_parallel=1) as made:
        made.start()
        made.frames("table", 1)
        running = made.client.ask()
        running.wait_state("decoding")
        queued = made.client.ask()
        queued.wait_state("queued")
        queued.cancel()
        ended, result = queued.wait_end()
        assert (ended, result.finish_reason, result.text) == ("canceled", "cancelled", "")
        running.cancel()
        ended, result = running.wait_end()
        assert (ended, result.finish_reason) == ("canceled", "cancelled")
        assert result.text and len(result.token_ids) < 96, "the partial text is the result"


def test_cancel_during_prefill(table: World, slow: SlowSampler) -> None:
    table.frames("table", 1)
    slow.gate.clear()
    asked = table.client.ask()
    asked.wait_state("prefill")
    asked.cancel()
    slow.gate.set()
    ended, result = asked.wait_end()
    assert (ended, result.finish_reason) == ("canceled", "cancelled")


def test_cancel_after_the_end_changes_nothing(table: World) -> None:
    table.frames("table", 1)
    asked = table.client.ask()
    ended, result = asked.wait_end()
    assert len(asked.cancel().goals_canceling) == 0
    assert ended == "succeeded" and result.finish_reason == "stop"


def test_a_cancel_at_any_moment_ends_the_goal_once(table: World) -> None:
    table.frames("table", 1)
    delays = random.Random(3)
    ends: Counter[tuple[str, str]] = Counter()
    for _ in range(60):
        asked = table.client.ask()
        assert asked.wait_accepted()
        time.sleep(delays.uniform(0.0, 0.02))
        asked.cancel()
        ended, result = asked.wait_end()
        ends[ended, result.finish_reason] += 1
    assert set(ends) <= {("canceled", "cancelled"), ("succeeded", "stop")}
    assert table.node.runtime.question_status().pending == 0


def test_deadlines_in_every_state(encoder_gate: Gate, slow: SlowSampler) -> None:
    with world(engine__cpu__max_parallel=1) as made:
        made.start()
        made.frames("table", 1)
        wait_for(lambda: _published(made) == 1, "the frame to be published")
        decoding = made.client.ask(deadline_s=1.0, max_tokens=256)
        decoding.wait_state("decoding")
        queued = made.client.ask(deadline_s=0.1)
        queued.wait_state("queued")
        encoder_gate.shut()
        made.frames("table", 1, first=1)
        waiting = made.client.ask(deadline_s=0.1)
        waiting.wait_state("waiting_context")
        for asked, has_text in ((queued, False), (waiting, False), (decoding, True)):
            ended, result = asked.wait_end()
            assert (ended, result.finish_reason) == ("succeeded", "deadline")
            assert bool(result.text) is has_text
        encoder_gate.open()


def test_deactivation_ends_goals_with_their_partial_text(slow: SlowSampler) -> None:
    with world() as made:
        made.start()
        made.frames("table", 1)
        running = [made.client.ask() for _ in range(3)]
        for asked in running:
            asked.wait_state("decoding")
        assert made.node.change("deactivate")
        for asked in running:
            ended, result = asked.wait_end()
            assert (ended, result.finish_reason) == ("aborted", "cancelled")
            assert result.text
        assert not made.client.ask().wait_accepted()
        assert made.node.change("activate")
        again = made.client.ask(max_tokens=3)
        assert again.wait_end()[1].finish_reason == "length"


def test_closing_the_node_ends_goals(slow: SlowSampler) -> None:
    with world() as made:
        made.start()
        made.frames("table", 1)
        asked = made.client.ask()
        asked.wait_state("decoding")
        made.node.close()
        assert asked.wait_end()[0] == "aborted"


def test_fifty_goals_on_a_queue_of_eight(slow: SlowSampler) -> None:
    with world(questions__max_pending=8) as made:
        made.start()
        made.frames("table", 1)
        goals = [made.client.ask(max_tokens=5) for _ in range(50)]
        accepted = [asked for asked in goals if asked.wait_accepted()]
        rejected = len(goals) - len(accepted)
        ends = Counter(asked.wait_end()[1].finish_reason for asked in accepted)
        assert len(accepted) >= 8 and rejected > 0
        assert ends == {"length": len(accepted)}
        wait_for(lambda: len(made.client.rejections) == rejected, "a reason for each rejection")
        assert {rejection.reason for rejection in made.client.rejections} == {"queue_full"}
        assert made.client.ask(max_tokens=2).wait_end()[0] == "succeeded"


# ------------------------------------------------------------------------- cameras
def test_a_camera_that_vanishes_and_returns(table: World) -> None:
    table.frames("table", 1)
    client = table.client
    client.destroy_publisher(client.cameras["table"])
    assert client.ask().wait_end()[0] == "succeeded", "questions do not need the camera"
    camera = table.node.cameras[0]
    wait_for(lambda: "nothing publishes" in camera.why_silent(), "the publisher to be gone")
    client.cameras["table"] = client.create_publisher(type(image(picture(0), 0)), camera.topic, 5)
    table.wait_connected()
    table.frames("table", 1, first=1)
    assert client.ask().wait_end()[1].context.frames == 2


def test_unusable_images_are_counted_and_explained(table: World) -> None:
    good = image(picture(1), 10**9)
    short = image(picture(1), 10**9)
    short.data = short.data[:100]
    empty = image(picture(1), 10**9)
    empty.height = empty.width = empty.step = 0
    huge = image(picture(1), 10**9)
    huge.height = huge.width = 20000
    huge.step = 60000
    strange = image(picture(1), 10**9)
    strange.encoding = "rot13"
    camera = table.client.cameras["table"]
    for count, message in enumerate((short, empty, huge, strange), start=1):
        camera.publish(message)
        wait_for(
            lambda c=count: table.node.runtime.stream_status("table").frames_invalid == c,
            "the image to be counted",
        )
    camera.publish(good)
    wait_for(
        lambda: table.node.runtime.stream_status("table").frames_registered == 1, "the good image"
    )
    wait_for(lambda: len(table.client.rejections) == 4, "the reasons")
    assert {rejection.what for rejection in table.client.rejections} == {"frame"}
    assert len({rejection.reason for rejection in table.client.rejections}) >= 3


def test_an_image_without_a_stamp_gets_the_time_of_its_arrival(table: World) -> None:
    before = table.node.get_clock().now().nanoseconds
    table.client.publish("table", picture(0), stamp_ns=0)
    wait_for(lambda: table.node.runtime.stream_status("table").frames_registered == 1, "the frame")
    _, result = table.client.ask().wait_end()
    stamp = result.context.last_stamp
    assert stamp.sec * 10**9 + stamp.nanosec >= before


def test_images_are_ignored_while_inactive(table: World) -> None:
    assert table.node.change("deactivate")
    subscription = next(s for s in table.node.subscriptions if s.topic_name == "/table/image_raw")
    handled: list[object] = []
    handle = subscription.callback
    subscription.callback = lambda message: (handle(message), handled.append(message))
    table.client.publish("table", picture(0), stamp_ns=10**9)
    wait_for(lambda: handled, "the image to arrive")
    assert table.node.change("activate")
    table.frames("table", 1)
    assert table.node.runtime.stream_status("table").frames == 1


def _published(made: World) -> int:
    assert made.node.runtime is not None
    status = made.node.runtime.stream_status("table")
    return status.frames if status.published == status.registered else -1


def test_a_compressed_camera() -> None:
    topic = "/jpeg/image/compressed"
    with world({"jpeg": topic}) as made:
        # One participant cannot have two types of one topic.
        made.client.destroy_publisher(made.client.cameras.pop("jpeg"))
        made.start()
        runtime = made.node.runtime
        assert runtime is not None
        camera = made.client.create_publisher(CompressedImage, topic, qos_profile_sensor_data)
        wait_for(lambda: camera.get_subscription_count() > 0, "the node's subscription")
        encoded, data = cv2.imencode(".jpg", picture(1))
        assert encoded
        whole = CompressedImage(format="jpeg", data=data.tobytes())
        whole.header.stamp.sec = 5
        camera.publish(CompressedImage(format="jpeg", data=data.tobytes()[: len(data) // 2]))
        wait_for(lambda: runtime.stream_status("jpeg").frames_invalid == 1, "the truncated image")
        camera.publish(whole)
        wait_for(lambda: runtime.stream_status("jpeg").frames_registered == 1, "the image")
        assert made.client.ask().wait_end()[1].context.last_stamp.sec == 5


def test_a_silent_camera_of_the_wrong_type_is_explained(table: World) -> None:
    table.client.destroy_publisher(table.client.cameras.pop("table"))
    context = Context()
    rclpy.init(context=context)
    other = rclpy.create_node("camera", context=context)
    try:
        other.create_publisher(CompressedImage, "/table/image_raw", qos_profile_sensor_data)
        camera = table.node.cameras[0]
        text = wait_for(lambda: (t := camera.why_silent()) and "carries" in t and t, "the type")
        assert "sensor_msgs/msg/CompressedImage" in text and "table.transport" in text
    finally:
        other.destroy_node()
        rclpy.shutdown(context=context)
