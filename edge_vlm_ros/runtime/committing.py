"""What becomes of answers that have ended: delivered, remembered, appended to their histories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from edge_vlm_ros.engines.protocol import FinishReason
from edge_vlm_ros.history import HistoryFull, Version

from .answer import AnswerResult
from .commits import CommitOrderQueue
from .config import CommitOrder
from .finished_answers import COMPLETE, CommitError, FinishedAnswers
from .prompt import PromptTemplate
from .question import Question
from .stream import StreamState


class Committing:
    """Commits answers in the configured order and hands out results with ``deliver``.

    A committed turn is computed on the trunk like any other item; the KV of the branch that made
    the answer is never used for it.
    """

    def __init__(
        self,
        streams: Mapping[str, StreamState],
        prompt: PromptTemplate,
        tokenize: Callable[[str], tuple[int, ...]],
        order: CommitOrder,
        deliver: Callable[[Question, AnswerResult], None],
    ) -> None:
        self._streams = streams
        self._prompt = prompt
        self._tokenize = tokenize
        self._deliver = deliver
        self._finished = FinishedAnswers()
        self._queue: CommitOrderQueue[tuple[Question, AnswerResult]] = CommitOrderQueue(order)

    @property
    def endings(self) -> dict[str, int]:
        """Answers by finish reason."""
        return dict(self._finished.endings)

    def accepted(self, question: Question) -> None:
        if question.options.commit:
            self._queue.expect(question.answer.stream, question.answer_id)

    def ended(self, question: Question, result: AnswerResult) -> None:
        """Deliver the result, or those whose turn it is when it is to be committed."""
        self._finished.add(question.prompt, result)
        if not question.options.commit:
            self._deliver(question, result)
            return
        ended = (question, result)
        for due, of_due in self._queue.finish(result.stream, result.answer_id, ended):
            complete = of_due.finish_reason in COMPLETE
            self._deliver(due, self._commit_on_finish(of_due) if complete else of_due)

    def commit(self, answer_id: int) -> Version:
        """Append a finished answer to its history. Raises CommitError or HistoryFull."""
        prompt, result = self._finished.to_commit(answer_id)
        ids = result.token_ids
        if result.finish_reason is FinishReason.STOP_STRING:
            ids = self._tokenize(result.text)  # without the stop string
        stream = self._streams[result.stream]
        if result.context.version.epoch < stream.first_epoch:
            raise CommitError(
                f"answer {answer_id} is about what stream {result.stream!r} saw before its reset"
            )
        tokens = self._prompt.turn(prompt, ids)
        version = stream.history.append_turn(tokens, f"{result.question} -> {result.text}")
        self._finished.mark_committed(answer_id)
        stream.ingest()
        return version

    def _commit_on_finish(self, result: AnswerResult) -> AnswerResult:
        try:
            self.commit(result.answer_id)
        except (CommitError, HistoryFull) as error:
            return replace(result, error=f"the answer was not committed: {error}")
        return replace(result, committed=True)
