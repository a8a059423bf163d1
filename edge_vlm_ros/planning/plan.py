"""What was decided, what else was possible, and what was expected of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PATHS = ("local", "import", "replay")

Objective = Literal["completion", "first_token"]


@dataclass(frozen=True)
class Alternative:
    """One complete way to answer a question. Times are in seconds from the decision.

    ``path`` is how the prefill engine gets the history: ``local``, ``import`` or ``replay``.
    """

    path: str
    prefill_engine: str
    decode_engine: str
    context_s: float
    """When the history is on the prefill engine."""
    first_token_s: float
    finished_s: float
    others_s: float = 0.0
    """By how much it delays other answers, summed over them."""
    ingest_s: float = 0.0
    """By how much it delays frames that are to be ingested."""
    last_s: float = 0.0
    """By how much it delays the end of all answers that were asked for so far."""
    share_s: float = 0.0
    """Penalty for an engine that has more than its share of the questions already."""
    blocked: str = ""
    """Why it is not possible; empty when it is."""

    @property
    def is_handoff(self) -> bool:
        return self.prefill_engine != self.decode_engine

    def score(self, objective: Objective) -> float:
        """What is to be small, in seconds. For completion the first token counts like the end:
        nobody reads before it."""
        own = self.first_token_s
        if objective == "completion":
            own += self.finished_s
        return own + self.others_s + self.ingest_s + self.last_s + self.share_s


@dataclass(frozen=True)
class Plan:
    """``alternatives`` holds all that were compared, the chosen one included."""

    policy: str
    chosen: Alternative
    alternatives: tuple[Alternative, ...]
    reason: str
