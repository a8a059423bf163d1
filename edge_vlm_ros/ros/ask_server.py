"""The action `~/ask`: goals become questions of the runtime, its answers feedback and results."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.exceptions import InvalidHandle
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile

from edge_vlm_ros.action import AskQuestion
from edge_vlm_ros.energy.meter import EnergyMeter
from edge_vlm_ros.msg import AnswerToken
from edge_vlm_ros.runtime import (
    Answer,
    AnswerResult,
    AnswerState,
    AnswerUpdate,
    FinishReason,
    QuestionRejected,
    Runtime,
)

from .convert import answer_message, ask_options, result_message
from .publishers import TOKENS, Publishers

_UNCLAIMED_S = 30.0
_CANCEL_TRANSITION_S = 2.0

# With the default depth of 10, requests of a burst are lost in the middleware without a trace.
_SERVICE_QOS = QoSProfile(depth=1024)

# What rcl raises when the context is gone, or for a transition that another thread was first with.
_ROS_ERRORS = (rclpy_implementation.RCLError, InvalidHandle)


@dataclass
class _Goal:
    """A goal from its acceptance to its end. Holds the request, so that its id stays unique."""

    request: AskQuestion.Goal
    answer: Answer
    accepted_at: float = field(default_factory=time.monotonic)
    executing: bool = False
    cancelled_by_client: bool = False


class AskServer:
    """Serves questions of any number of clients.

    ``runtime`` gives the runtime to ask, or None while there is none; ``inactive_text`` says why
    and what to do. rclpy hands the very same request object to the goal callback and to the goal
    handle, which is how an accepted goal finds its answer.
    """

    def __init__(
        self,
        node: Node,
        publishers: Publishers,
        energy: EnergyMeter,
        runtime: Callable[[], Runtime | None],
        inactive_text: Callable[[], str],
        result_timeout: float,
    ) -> None:
        self._node = node
        self._publishers = publishers
        self._energy = energy
        self._runtime = runtime
        self._inactive_text = inactive_text
        self._goals: dict[int, _Goal] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._server = ActionServer(
            node,
            AskQuestion,
            "~/ask",
            execute_callback=self._execute,
            goal_callback=self._on_goal,
            handle_accepted_callback=self._on_accepted,
            cancel_callback=self._on_cancel,
            callback_group=ReentrantCallbackGroup(),
            goal_service_qos_profile=_SERVICE_QOS,
            result_service_qos_profile=_SERVICE_QOS,
            cancel_service_qos_profile=_SERVICE_QOS,
            feedback_pub_qos_profile=QoSProfile(depth=TOKENS.depth),
            # rclpy takes whole seconds; its default differs between distributions.
            result_timeout=round(result_timeout),
        )

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no goal is running; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running(), timeout)

    def close(self) -> None:
        """Let every goal end, even one whose answer never does."""
        self._closing = True

    def destroy(self) -> None:
        """Free the action; destroying its node does not."""
        self._server.destroy()

    # -------------------------------------------------------------------- callbacks of rclpy
    def _on_goal(self, request: AskQuestion.Goal) -> GoalResponse:
        stream = request.stream
        try:
            runtime = self._runtime()
            if runtime is None or not runtime.active:
                raise QuestionRejected("inactive", self._inactive_text())
            stream = _chosen_stream(request.stream, runtime.stream_names)
            answer = runtime.ask(stream, request.question, ask_options(request, stream))
        except QuestionRejected as rejection:
            self._publishers.reject_question(stream, rejection.reason, str(rejection))
            return GoalResponse.REJECT
        self._energy.begin(answer.answer_id)
        with self._changed:
            self._forget_unclaimed()
            self._goals[id(request)] = _Goal(request, answer)
        return GoalResponse.ACCEPT

    def _on_accepted(self, handle: ServerGoalHandle) -> None:
        with self._changed:
            self._goals[id(handle.request)].executing = True
        try:
            handle.execute()
        except _ROS_ERRORS:
            # Cancelled between rclpy's look at the state and its transition: it knows by now.
            handle.execute()

    def _on_cancel(self, handle: ServerGoalHandle) -> CancelResponse:
        with self._changed:
            goal = self._goals.get(id(handle.request))
            if goal is not None:
                goal.cancelled_by_client = True
        if goal is not None:
            goal.answer.cancel()
        return CancelResponse.ACCEPT

    def _execute(self, handle: ServerGoalHandle) -> AskQuestion.Result:
        with self._changed:
            goal = self._goals[id(handle.request)]
        try:
            return self._answer(handle, goal)
        except Exception as error:  # rclpy would end the goal without a word
            self._node.get_logger().error(f"goal failed:\n{traceback.format_exc()}")
            return self._give_up(handle, f"{type(error).__name__}: {error}")
        finally:
            self._energy.end(goal.answer.answer_id)
            with self._changed:
                del self._goals[id(handle.request)]
                self._changed.notify_all()

    # -------------------------------------------------------------------- one answer
    def _answer(self, handle: ServerGoalHandle, goal: _Goal) -> AskQuestion.Result:
        result = self._stream_answer(handle, goal.answer)
        if result is None:
            return self._give_up(handle, "the node was shut down")
        header = self._publishers.header()
        energy_j = self._energy.end(result.answer_id)
        message = result_message(result, header, energy_j)
        self._publish(self._publishers.answers.publish, answer_message(result, header))
        self._publish(self._publishers.metrics.publish, message.metrics)
        self._finish(handle, goal, result)
        return message

    def _give_up(self, handle: ServerGoalHandle, error: str) -> AskQuestion.Result:
        self._end(handle.abort)
        return AskQuestion.Result(finish_reason=FinishReason.ERROR.value, error=error)

    def _stream_answer(self, handle: ServerGoalHandle, answer: Answer) -> AnswerResult | None:
        """Publish the answer as it comes. None if it has no end before the server is closed."""
        sent: list[str] = []
        tokens = 0
        for update in self._updates(answer):
            self._publish(handle.publish_feedback, _feedback(update, len(sent)))
            if update.delta:
                tokens = update.generated_tokens
                self._publish_token(answer, len(sent), update.delta, tokens, last=False)
                sent.append(update.delta)
        try:
            result = answer.result(timeout=0.0)
        except TimeoutError:
            return None
        text = "".join(sent)
        rest = result.text[len(text) :] if result.text.startswith(text) else ""
        self._publish_token(answer, len(sent), rest, result.metrics.generated_tokens, last=True)
        return result

    def _updates(self, answer: Answer) -> Iterator[AnswerUpdate]:
        """Updates of an answer; those that have piled up are merged into one."""
        while True:
            try:
                update = answer.next_update(timeout=1.0)
            except TimeoutError:
                if self._closing:
                    return
                continue
            if update is None:
                return
            ended = False
            deltas = [update.delta]
            try:
                while (following := answer.next_update(timeout=0.0)) is not None:
                    update = following
                    deltas.append(following.delta)
                ended = True
            except TimeoutError:
                pass
            yield AnswerUpdate(
                update.state, update.sequence, "".join(deltas), update.generated_tokens
            )
            if ended:
                return

    def _publish_token(
        self, answer: Answer, sequence: int, delta: str, generated_tokens: int, last: bool
    ) -> None:
        message = AnswerToken(
            header=self._publishers.header(),
            answer_id=answer.answer_id,
            stream=answer.stream,
            sequence=sequence,
            delta=delta,
            generated_tokens=generated_tokens,
            last=last,
        )
        self._publish(self._publishers.tokens.publish, message)

    def _finish(self, handle: ServerGoalHandle, goal: _Goal, result: AnswerResult) -> None:
        """The goal's one terminal transition."""
        if result.finish_reason is FinishReason.ERROR:
            self._node.get_logger().error(f"answer {result.answer_id} failed: {result.error}")
            self._end(handle.abort)
        elif result.finish_reason is not FinishReason.CANCELLED:
            self._end(handle.succeed)
        elif goal.cancelled_by_client and _wait_for_cancel_transition(handle):
            self._end(handle.canceled)
        else:
            self._end(handle.abort)

    def _end(self, transition: Callable[[], None]) -> None:
        try:
            transition()
        except _ROS_ERRORS as error:
            self._node.get_logger().debug(f"goal could not be ended: {error}")

    def _publish(self, publish: Callable[[object], None], message: object) -> None:
        try:
            publish(message)
        except _ROS_ERRORS as error:
            self._node.get_logger().debug(f"could not publish: {error}")

    # -------------------------------------------------------------------- bookkeeping
    def _running(self) -> list[_Goal]:
        return [goal for goal in self._goals.values() if goal.executing]

    def _forget_unclaimed(self) -> None:
        """rclpy does not execute a goal whose client has gone before it heard of the acceptance,
        nor one whose id is taken."""
        limit = time.monotonic() - _UNCLAIMED_S
        for key, goal in list(self._goals.items()):
            if not goal.executing and goal.accepted_at < limit:
                goal.answer.cancel()
                self._energy.end(goal.answer.answer_id)
                del self._goals[key]


def _chosen_stream(asked: str, streams: tuple[str, ...]) -> str:
    if asked:
        return asked
    if len(streams) == 1:
        return streams[0]
    raise QuestionRejected(
        "unknown_stream", f"the goal names no stream and there are several: {', '.join(streams)}"
    )


def _feedback(update: AnswerUpdate, sequence: int) -> AskQuestion.Feedback:
    state = AnswerState.DECODING if update.state is AnswerState.FINISHED else update.state
    return AskQuestion.Feedback(
        state=state.value,
        sequence=sequence,
        delta=update.delta,
        generated_tokens=update.generated_tokens,
    )


def _wait_for_cancel_transition(handle: ServerGoalHandle) -> bool:
    """rclpy moves a goal to CANCELING only after the cancel callback has returned, but the answer
    may have ended by then; ending the goal first would be an invalid transition."""
    limit = time.monotonic() + _CANCEL_TRANSITION_S
    while not handle.is_cancel_requested:
        if time.monotonic() > limit or not handle.is_active:
            return False
        time.sleep(0.001)
    return True
