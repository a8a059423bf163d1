"""Which engines work, and when a failed one is started again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.errors import DeviceError
from edge_vlm_ros.engines.protocol import PrefillStarted
from edge_vlm_ros.runtime.engine_slots import EngineSaid, EngineSlots, EngineStarted


class StandIn:
    """An engine of which only the end is of interest."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self.emit = emit
        self.may_close = threading.Event()
        self.closed = threading.Event()

    def close(self) -> None:
        assert self.may_close.wait(30)
        self.closed.set()


class World:
    """Slots of one engine; ``broken`` makes starting it fail."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.made: list[StandIn] = []
        self.broken: Exception | None = None
        configs = [EngineConfig(name="far")]
        self.slots = EngineSlots(configs, self._make, self.messages.put, 1.0, 5.0)  # type: ignore[arg-type]
        self.slots.start_all()

    def _make(self, config: EngineConfig, emit: Callable[[Any], None]) -> StandIn:
        if self.broken is not None:
            raise self.broken
        self.made.append(StandIn(emit))
        return self.made[-1]

    def fail(self, now: float) -> float:
        """Returns the time of the next start."""
        self.slots.failed("far", "gone", now)
        at = self.slots["far"].retry_at
        assert at is not None and self.slots["far"].state == "failed"
        return at

    def start_again(self, now: float) -> bool:
        self.slots.retry_due(now)
        assert self.slots["far"].state == "starting"
        message = self.messages.get(timeout=30)
        assert isinstance(message, EngineStarted)
        return self.slots.started(message, now)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for engine in made.made:
        engine.may_close.set()
    made.slots.close()


def test_the_wait_doubles_with_each_failure_in_a_row_up_to_the_limit(world: World) -> None:
    world.broken = DeviceError("no server")
    now, waits = 100.0, []
    for _ in range(5):
        at = world.fail(now)
        waits.append(at - now)
        now = at
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
    world.slots.worked("far")
    assert world.fail(now) == now + 1.0
    assert world.slots["far"].failures == 6


def test_it_is_started_when_it_is_due_and_not_before(world: World) -> None:
    at = world.fail(100.0)
    assert world.slots.seconds_to_retry(100.25) == 0.75
    world.slots.retry_due(at - 0.01)
    assert world.slots["far"].state == "failed" and len(world.made) == 1
    assert world.start_again(at)
    assert world.slots["far"].state == "ready" and world.slots["far"].error == ""
    assert world.slots.engine("far") is world.made[1]  # type: ignore[comparison-overlap]
    assert world.slots.seconds_to_retry(at) is None


def test_a_start_that_fails_is_tried_again(world: World) -> None:
    world.broken = DeviceError("no server")
    at = world.fail(100.0)
    assert not world.start_again(at)
    slot = world.slots["far"]
    assert (slot.state, slot.error, slot.retry_at) == ("failed", "no server", at + 2.0)
    with pytest.raises(KeyError, match="far"):
        world.slots.engine("far")
    world.broken = None
    assert world.start_again(at + 2.0)


def test_the_last_words_of_a_failed_engine_are_not_heard(world: World) -> None:
    at = world.fail(100.0)
    world.made[0].emit(PrefillStarted(1))
    late = world.messages.get(timeout=30)
    assert isinstance(late, EngineSaid) and not world.slots.is_current(late)
    assert world.start_again(at)
    assert not world.slots.is_current(late)
    world.made[1].emit(PrefillStarted(1))
    assert world.slots.is_current(world.messages.get(timeout=30))


def test_closing_waits_for_engines_that_failed(world: World) -> None:
    """What they use is freed next."""
    world.fail(100.0)
    closing = threading.Thread(target=world.slots.close)
    closing.start()
    assert closing.is_alive() and not world.made[0].closed.is_set()
    world.made[0].may_close.set()
    closing.join(30)
    assert not closing.is_alive() and world.made[0].closed.is_set()
