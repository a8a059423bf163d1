"""What streams have asked for lately, as a guess at what comes next."""

from __future__ import annotations

from edge_vlm_ros.engines.moving_average import MovingAverage
from edge_vlm_ros.planning.rates import EventRate

from .question import Question


class StreamEstimates:
    """Questions of one stream. Lengths are averages over ended answers."""

    def __init__(self) -> None:
        self.questions = EventRate()
        self.prompt_tokens = MovingAverage()
        self._answer_tokens = MovingAverage()

    def asked(self, question: Question) -> None:
        self.questions.add(question.arrived)
        self.prompt_tokens.add(len(question.prompt))

    def answered(self, question: Question) -> None:
        """An answer has ended by itself."""
        self._answer_tokens.add(question.generated_tokens)

    @property
    def answer_tokens_seen(self) -> float:
        """Average over ended answers; 0 before the first."""
        return self._answer_tokens.value

    def answer_tokens(self, max_tokens: int) -> float:
        """Expected length of an answer that may have ``max_tokens``: before the first answer, all
        of them."""
        return min(float(max_tokens), self._answer_tokens.value or float(max_tokens))

    def tokens_left(self, question: Question) -> float:
        """Expected of a question that has generated some: at least one is to come."""
        expected = self.answer_tokens(question.max_tokens)
        return max(1.0, expected - question.generated_tokens)
