"""The simulated machine: its clock, what is due on it, and who disturbs whom."""

from __future__ import annotations

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import CostModel
from edge_vlm_ros.planning.overlaps import as_cost

from .clock import VirtualClock
from .events import EventQueue


class Machine:
    """Shared by all simulated engines and encoders."""

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self.clock = VirtualClock()
        self.events = EventQueue()
        self._doing: dict[str, Activity] = {}

    def slowed(self, who: str, activity: Activity, seconds: float) -> float:
        """How long something of ``seconds`` takes beside what the others are doing now."""
        return seconds * self.costs.slowdown(who, as_cost(activity), self._doing.items())

    def begin(self, who: str, activity: Activity) -> None:
        """From now on until ``end`` this disturbs the others."""
        self._doing[who] = as_cost(activity)

    def end(self, who: str) -> None:
        self._doing.pop(who, None)
