"""Answers that have ended and can still be committed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace

from edge_vlm_ros.engines.protocol import FinishReason

from .answer import AnswerResult

REMEMBERED_ANSWERS = 64
COMPLETE = (FinishReason.STOP, FinishReason.STOP_STRING, FinishReason.LENGTH)
"""Ends that leave a whole answer."""


class CommitError(RuntimeError):
    """An answer cannot be appended to its stream's history."""


class FinishedAnswers:
    """The last answers with the tokens of their questions, and how many ended in which way."""

    def __init__(self) -> None:
        self.endings: Counter[str] = Counter()
        self._answers: OrderedDict[int, tuple[tuple[int, ...], AnswerResult]] = OrderedDict()

    def add(self, prompt: tuple[int, ...], result: AnswerResult) -> None:
        self.endings[result.finish_reason.value] += 1
        self._answers[result.answer_id] = (prompt, result)
        if len(self._answers) > REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)

    def to_commit(self, answer_id: int) -> tuple[tuple[int, ...], AnswerResult]:
        """The question's tokens and the answer. Raises CommitError, also for a second time."""
        if answer_id not in self._answers:
            raise CommitError(
                f"answer {answer_id} has not finished, or is not one of the last "
                f"{REMEMBERED_ANSWERS}"
            )
        prompt, result = self._answers[answer_id]
        if result.committed:
            raise CommitError(f"answer {answer_id} has been committed already")
        if result.finish_reason not in COMPLETE:
            raise CommitError(
                f"answer {answer_id} is not complete: it ended by {result.finish_reason.value}"
            )
        return prompt, result

    def mark_committed(self, answer_id: int) -> None:
        prompt, result = self._answers[answer_id]
        self._answers[answer_id] = (prompt, replace(result, committed=True))
