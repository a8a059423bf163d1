"""Hears what the runtime tells and keeps what a result is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edge_vlm_ros.history import FrameItem, Version
from edge_vlm_ros.runtime.answer import Answer, AnswerResult
from edge_vlm_ros.runtime.listener import RuntimeListener
from edge_vlm_ros.runtime.stream import StreamState
from edge_vlm_ros.runtime.trace import QuestionTimes

from .result import AnswerRecord
from .workload import Asked


class Observer(RuntimeListener):
    """``streams`` must be set before the first message; question texts begin with their number."""

    def __init__(self, clock: Callable[[], float], questions: Mapping[int, Asked]) -> None:
        self.streams: Mapping[str, StreamState] = {}
        self.answers: list[AnswerRecord] = []
        self.rejected: dict[int, str] = {}
        self.dropped_frames = 0
        self.lags: list[float] = []
        self.finished: set[int] = set()
        self.end_s = 0.0
        """When a frame or a question was dealt with last; engines may compute ahead after it."""
        self._clock = clock
        self._questions = questions
        self._published: set[tuple[str, int]] = set()

    def frame_dropped(self, stream: str, reason: str, text: str) -> None:
        self.dropped_frames += 1
        self.end_s = self._clock()

    def question_rejected(self, stream: str, question: str, reason: str, text: str) -> None:
        self.rejected[number_of(question)] = reason
        self.end_s = self._clock()

    def answer_finished(self, answer: Answer, result: AnswerResult) -> None:
        number, metrics = number_of(result.question), result.metrics
        self.finished.add(number)
        self.end_s = self._clock()
        self.answers.append(
            AnswerRecord(
                number=number,
                stream=result.stream,
                arrived=self._questions[number].at,
                ttft_s=metrics.ttft_ms / 1000.0,
                total_s=metrics.total_ms / 1000.0,
                engine=metrics.engine,
                prefill_engine=metrics.prefill_engine,
                path=metrics.path,
                generated_tokens=metrics.generated_tokens,
                finish_reason=result.finish_reason.value,
            )
        )

    def version_published(self, version: Version) -> None:
        self.end_s = self._clock()
        epoch = self.streams[version.stream].history.epoch(version.epoch)
        for item in epoch.items[: version.n]:
            if not isinstance(item, FrameItem):
                continue
            key = version.stream, item.frame_id
            if key not in self._published:
                self._published.add(key)
                self.lags.append(self._clock() - item.stamp_ns / 1e9)


def question_text(number: int, prompt_tokens: int) -> str:
    """What stands for a question: its number and its length."""
    return f"{number} {prompt_tokens}"


def number_of(text: str) -> int:
    return int(text.split()[0])


def question_times(answer: AnswerRecord) -> QuestionTimes:
    """For a picture of engines and questions."""
    return QuestionTimes(
        answer_id=answer.number,
        stream=answer.stream,
        arrived=answer.arrived,
        context_ready=None,
        first_token=answer.arrived + answer.ttft_s,
        finished=answer.arrived + answer.total_s,
        engine=answer.engine,
        path=answer.path,
        finish_reason=answer.finish_reason,
    )
