"""What a runtime tells the program around it as it happens."""

from __future__ import annotations

from edge_vlm_ros.history import Version

from .answer import Answer, AnswerResult, AnswerUpdate
from .messages import FrameArrived
from .status import PlanRecord


class RuntimeListener:
    """Override what you want to hear.

    All methods are called from the coordinator's thread: return quickly, never block, and do not
    call the runtime, which would wait for itself. An exception is logged and changes nothing.
    """

    def frame_registered(self, frame: FrameArrived) -> None:
        """A frame got its place in the history. Its pixels must not be changed."""

    def frame_dropped(self, stream: str, reason: str, text: str) -> None:
        """A frame was not registered (reasons pending_full, pending_replaced, history_full,
        engine_failed), or could not be encoded (encoder_failed)."""

    def question_rejected(self, stream: str, question: str, reason: str, text: str) -> None:
        """A question was not accepted."""

    def answer_updated(self, answer: Answer, update: AnswerUpdate) -> None:
        """An answer has a new state or more text."""

    def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
        """An answer has ended, one way or another."""

    def version_published(self, version: Version) -> None:
        """Questions about this version can be answered at once."""

    def engine_failed(self, engine: str, error: str) -> None:
        """An engine has stopped working. Its questions go on elsewhere; it is started again."""

    def engine_recovered(self, engine: str) -> None:
        """An engine that had failed works again."""

    def answer_moved(self, answer: Answer, engine: str, why: str) -> None:
        """An answer goes on on ``engine`` because the one it was on failed."""

    def pair_incompatible(self, source: str, destination: str, detail: str) -> None:
        """KV cannot be moved between two engines: replay is used instead."""

    def plan_made(self, record: PlanRecord) -> None:
        """It was decided how a question is to be answered."""

    def plan_finished(self, record: PlanRecord) -> None:
        """The answer of a plan has ended: ``record`` has the actual times."""
