"""Traces that are switched on and off while a runtime works."""

from __future__ import annotations

from collections.abc import Callable

from edge_vlm_ros.engines.protocol import AnswerFinished
from edge_vlm_ros.engines.step_record import StepRecord

from .plan_text import plan_text
from .question import Question
from .status import PlanRecord
from .trace import QuestionTimes, TraceWriter


class Tracing:
    """Writes what it is told to the trace, while there is one. Owned by the coordinator's thread.

    ``collect`` hands over the steps that are done and were not told yet.
    """

    def __init__(self, collect: Callable[[], None], clock: Callable[[], float]) -> None:
        self._collect = collect
        self._clock = clock
        self._trace: TraceWriter | None = None

    def start(self, path: str) -> None:
        """Write every step from now on to a file. Raises OSError, or ValueError when a trace is
        being written or the path is not absolute."""
        if self._trace is not None:
            raise ValueError("a trace is being written: stop it first")
        self._collect()  # what came before is not part of it
        self._trace = TraceWriter(path)

    def stop(self) -> int:
        """Returns the number of events written. Raises ValueError when no trace is written."""
        if self._trace is None:
            raise ValueError("no trace is being written: start one with the path of a file")
        self._collect()
        trace, self._trace = self._trace, None
        trace.close()
        return trace.events

    def close(self) -> None:
        """End the trace, if there is one."""
        if self._trace is not None:
            self.stop()

    def tick(self) -> None:
        """Let what was written long enough ago reach the file."""
        if self._trace is not None:
            self._trace.tick()

    def stepped(self, name: str, steps: list[StepRecord]) -> None:
        if self._trace is not None:
            self._trace.add_steps(name, steps)

    def planned(self, record: PlanRecord) -> None:
        if self._trace is not None:
            self._trace.add_plan(record.answer_id, self._clock(), plan_text(record))

    def ended(self, question: Question, event: AnswerFinished) -> None:
        if self._trace is None:
            return
        self._trace.add_question(
            QuestionTimes(
                answer_id=question.answer_id,
                stream=question.version.stream,
                arrived=question.arrived,
                context_ready=question.context_ready,
                first_token=question.first_token,
                finished=self._clock(),
                engine=question.engine,
                path=question.use.path.value,
                finish_reason=event.reason.value,
            )
        )
