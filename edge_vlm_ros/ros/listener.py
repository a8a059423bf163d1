"""Passes on what the runtime tells."""

from __future__ import annotations

from edge_vlm_ros.runtime import Answer, AnswerResult, RuntimeListener
from edge_vlm_ros.runtime.messages import FrameArrived
from edge_vlm_ros.runtime.status import PlanRecord

from .annotated_images import AnnotatedImages
from .plan_publisher import PlanPublisher
from .publishers import Publishers


class NodeListener(RuntimeListener):
    """Called from the coordinator's thread. What becomes of engines and answers the runtime logs
    itself."""

    def __init__(
        self, publishers: Publishers, plans: PlanPublisher, annotated: AnnotatedImages
    ) -> None:
        self._publishers = publishers
        self._plans = plans
        self._annotated = annotated

    def frame_registered(self, frame: FrameArrived) -> None:
        self._annotated.keep(frame.stream, frame.stamp_ns, frame.rgb)

    def frame_dropped(self, stream: str, reason: str, text: str) -> None:
        self._publishers.reject_frame(stream, reason, text)

    def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
        self._annotated.show(result)

    def plan_made(self, record: PlanRecord) -> None:
        self._plans.add(record)

    def plan_finished(self, record: PlanRecord) -> None:
        self._plans.add(record)
