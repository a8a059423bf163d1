"""The shape that every kind of question has."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edge_vlm_ros.demo.world import Scene

# The wording, and what is asked about: the arguments of the kind's answer function.
Asked = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Kind:
    """ask: draws a question of this kind, or None where the scene does not allow one.
    answer: the truth about `subject` in a scene, or None where no answer was trained.
    weight: relative frequency in training.
    """

    name: str
    weight: float
    ask: Callable[[Scene, random.Random], Asked | None]
    answer: Callable[..., str | None]
