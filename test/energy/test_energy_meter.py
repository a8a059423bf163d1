"""Energy is shared among the answers that are being made."""

from __future__ import annotations

import threading

import pytest

from edge_vlm_ros.energy.meter import EnergyMeter


class Counter:
    """A sensor that says what the test wants."""

    name = "counter"

    def __init__(self) -> None:
        self.value = 100.0
        self.error: Exception | None = None
        self.read = threading.Event()

    def joules(self) -> float:
        self.read.set()
        if self.error is not None:
            raise self.error
        return self.value


def test_every_moment_is_shared_equally() -> None:
    counter = Counter()
    meter = EnergyMeter(counter, period_s=60.0)
    meter.begin(1)
    counter.value += 10.0
    meter.begin(2)
    counter.value += 4.0
    assert meter.end(1) == pytest.approx(12.0)
    counter.value += 3.0
    assert meter.end(2) == pytest.approx(5.0)
    counter.value += 1000.0  # nobody's
    meter.begin(3)
    counter.value += 1.0
    assert meter.end(3) == pytest.approx(1.0)
    assert meter.end(3) == 0.0 and meter.end(99) == 0.0
    meter.close()


def test_it_reads_while_an_answer_is_made_and_not_otherwise() -> None:
    counter = Counter()
    meter = EnergyMeter(counter, period_s=0.01)
    assert not counter.read.wait(0.1)
    meter.begin(1)
    counter.read.clear()
    assert counter.read.wait(30.0)
    meter.close()


def test_without_a_sensor_answers_take_nothing() -> None:
    meter = EnergyMeter(None)
    meter.begin(1)
    assert meter.end(1) == 0.0 and meter.sensor_name == ""
    meter.close()


def test_a_reading_that_fails_is_told_once_and_made_up_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counter = Counter()
    meter = EnergyMeter(counter, period_s=60.0)
    assert meter.sensor_name == "counter"
    meter.begin(1)
    counter.value += 10.0
    counter.error = OSError("bus error")
    meter.begin(2)
    assert meter.end(2) == 0.0
    counter.error = None
    assert meter.end(1) == pytest.approx(10.0)
    assert caplog.text.count("counter cannot be read: bus error") == 1
    meter.close()
