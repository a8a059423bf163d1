"""What came out of a simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge_vlm_ros.engines.step_record import StepRecord


@dataclass(frozen=True)
class AnswerRecord:
    """One answer. Times in seconds; ``ttft_s`` and ``total_s`` count from ``arrived``."""

    number: int
    stream: str
    arrived: float
    ttft_s: float
    total_s: float
    engine: str
    prefill_engine: str
    path: str
    generated_tokens: int
    finish_reason: str


@dataclass(frozen=True)
class SimulationResult:
    """One workload under one policy."""

    policy: str
    answers: tuple[AnswerRecord, ...]
    """In the order of their ends."""
    rejected: tuple[str, ...]
    """Why questions were refused, one reason each."""
    frames: int
    dropped_frames: int
    ingestion_lag_s: tuple[float, ...]
    """From a frame's arrival until questions about it can be answered at once, by frame."""
    timelines: Mapping[str, Sequence[StepRecord]]
    """All steps of every engine, and of the encoder under the name of what it runs on."""
    duration_s: float
    """How long frames and questions kept coming."""
    end_s: float
    """When the last of them was dealt with. Engines may compute ahead after that."""

    @property
    def ttft_s(self) -> list[float]:
        return [answer.ttft_s for answer in self.answers]

    @property
    def total_s(self) -> list[float]:
        return [answer.total_s for answer in self.answers]

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second, from the first question's arrival to the last answer's end."""
        tokens = sum(answer.generated_tokens for answer in self.answers)
        return tokens / self.answering_s if tokens else 0.0

    @property
    def answering_s(self) -> float:
        """From the first question's arrival to the last answer's end."""
        ends = [answer.arrived + answer.total_s for answer in self.answers]
        return max(ends) - min(answer.arrived for answer in self.answers) if ends else 0.0

    @property
    def mean_backlog(self) -> float:
        """Questions that are not yet answered, on average over ``answering_s``."""
        return sum(self.total_s) / self.answering_s if self.answers else 0.0

    def utilisation(self, name: str) -> float:
        """Part of the time until the end that an engine or the encoder was busy."""
        left = ((step.seconds, self.end_s - step.started) for step in self.timelines[name])
        busy_s = sum(min(seconds, max(0.0, rest)) for seconds, rest in left)
        return busy_s / self.end_s if self.end_s else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that ``percent`` of the values do not exceed; nan without values."""
    if not values:
        return math.nan
    rank = math.ceil(percent / 100.0 * len(values))
    return sorted(values)[max(rank, 1) - 1]
