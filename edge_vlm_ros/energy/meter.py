"""Energy of answers: what the machine takes is shared among the answers being made."""

from __future__ import annotations

import logging
import threading

from .sensors import Sensor

_logger = logging.getLogger(__name__)

PERIOD_S = 0.1


class EnergyMeter:
    """Shares the joules of every moment equally among the answers that are being made then.

    Everything that the sensor measures is shared, idle power and the work on frames included; what
    it measures while no answer is being made belongs to none. So the energies of all answers add
    up to that of the times in which there were any. Thread-safe. Without a sensor every answer
    takes 0 J.
    """

    def __init__(self, sensor: Sensor | None, period_s: float = PERIOD_S) -> None:
        self._sensor = sensor
        self._period_s = period_s
        self._changed = threading.Condition()
        self._joules: dict[int, float] = {}
        self._before = 0.0
        self._failing = False
        self._closed = False
        self._thread: threading.Thread | None = None
        if sensor is not None:
            self._thread = threading.Thread(target=self._sample, name="energy", daemon=True)
            self._thread.start()

    @property
    def sensor_name(self) -> str:
        """What is measured; empty without a sensor."""
        return "" if self._sensor is None else self._sensor.name

    def begin(self, answer_id: int) -> None:
        """From now on this answer takes its share."""
        with self._changed:
            self._account()
            if self._sensor is not None:
                self._joules[answer_id] = 0.0
                self._changed.notify()

    def end(self, answer_id: int) -> float:
        """The joules of an answer that has ended; 0 without a sensor, and for a second time."""
        with self._changed:
            self._account()
            return self._joules.pop(answer_id, 0.0)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _account(self) -> None:
        """Share what was measured since the last time. A reading takes a millisecond at most."""
        if self._sensor is None:
            return
        try:
            now = self._sensor.joules()
        except (OSError, ValueError) as error:  # of a chip on a bus: the next reading may succeed
            if not self._failing:
                _logger.warning("energy of answers: %s cannot be read: %s", self.sensor_name, error)
            self._failing = True
            return
        self._failing = False
        for answer_id in self._joules:
            self._joules[answer_id] += (now - self._before) / len(self._joules)
        self._before = now

    def _sample(self) -> None:
        with self._changed:
            while not self._closed:
                self._changed.wait(self._period_s if self._joules else None)
                if self._joules:
                    self._account()
