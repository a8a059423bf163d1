"""Gives questions their places on engines, and takes them back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from edge_vlm_ros.history import Epoch

from .engine_slots import EngineSlots
from .path import Path
from .planner import Planner
from .question import Question
from .trunks import Trunks

_logger = logging.getLogger(__name__)

FRESH_S = 0.02
"""A plan that was made so short a time ago is not made again."""


class Placing:
    """Owned by the coordinator's thread. ``failed`` hears of questions for which no plan could be
    made: nobody would ever come back to them."""

    def __init__(
        self,
        planner: Planner,
        slots: EngineSlots,
        trunks: Trunks,
        clock: Callable[[], float],
        failed: Callable[[Question, str], None],
    ) -> None:
        self._planner = planner
        self._slots = slots
        self._trunks = trunks
        self._clock = clock
        self._failed = failed

    def usable_engines(self, question: Question) -> list[str]:
        ready = [slot.config.name for slot in self._slots.ready]
        return [name for name in ready if name not in question.failed_on]

    def place(self, question: Question, epoch: Epoch) -> bool:
        """Choose engines for a question; False: it waits for a place on one, or for an engine."""
        usable = self.usable_engines(question)
        if not usable:
            return False
        try:
            question.waits_for_place = not self._planner.place(question, epoch, usable)
            return not question.waits_for_place
        except Exception as error:
            _logger.exception("no plan could be made for answer %d", question.answer_id)
            self._failed(question, f"no plan could be made: {type(error).__name__}: {error}")
            return False

    def place_again(self, question: Question, epoch: Epoch) -> bool:
        """Plan a question once more whose history is there after it had to wait for that: what it
        was to do beside others may have changed. Whether it goes elsewhere now."""
        is_fresh = self._clock() - question.planned_at < FRESH_S
        is_free = question.is_open and question.path is Path.ANY and not question.planned_again
        if is_fresh or not is_free or not self._planner.policy.plans_again:
            return False
        question.planned_again = True
        before = question.engine, question.prefill_engine
        question.engine = question.prefill_engine = ""
        try:
            placed = self._planner.place(question, epoch, self.usable_engines(question))
        except Exception:  # it has a place
            _logger.exception("answer %d could not be planned again", question.answer_id)
            placed = False
        if not placed:
            question.engine, question.prefill_engine = before
            return False
        now = question.engine, question.prefill_engine
        for name in set(before).difference(now):
            self._trunks.unneed(question.answer_id, name)
        return now != before

    def unplace(self, questions: Iterable[Question]) -> None:
        """Have those planned anew that no engine has begun."""
        for question in questions:
            if question.is_open and question.engine:
                question.unplace()
                self._trunks.unneed(question.answer_id)
