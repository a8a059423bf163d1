"""Measures how much engines and encoders slow each other down."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from edge_vlm_ros.engines.step_record import Activity, StepLog, StepRecord
from edge_vlm_ros.planning.costs import Busy, EngineCosts
from edge_vlm_ros.planning.overlaps import as_cost
from edge_vlm_ros.vision.encoder import Encoder

from .calibration_engine import Load
from .engine_talk import EngineTalk

_COVERED = 0.7
"""Part of a step during which the other must have been at work."""
_PATIENCE = 8.0
"""How many times longer than planned a pair is run until there are some good steps of each."""
_GOOD = 3
"""One alone may have met something else that the machine did."""
_FEWEST = 3
"""Frames encoded to see how long one takes; the first is not counted."""

Steps = Mapping[str, Sequence[StepRecord]]


class EncoderBench:
    """An encoder at work in a thread of its own, on noise."""

    def __init__(self, name: str, encoder: Encoder) -> None:
        self.name = name
        self._encoder = encoder
        self._pixels = np.random.default_rng(0).integers(
            0, 256, (*encoder.input_size, 3), dtype=np.uint8
        )
        self._log = StepLog()
        self._error: Exception | None = None

    def measure(self, seconds: float) -> float:
        """Seconds a frame with everything else idle. Raises EncoderError."""
        with self.working():
            began, steps = time.monotonic(), list[StepRecord]()
            while len(steps) < _FEWEST or time.monotonic() - began < seconds:
                time.sleep(0.01)
                steps += self.take_steps()
                if len(steps) > 4 * _FEWEST:
                    break
        return statistics.median(step.seconds for step in steps[1:])

    @contextmanager
    def working(self) -> Iterator[None]:
        """Encode one frame after the other meanwhile. Raises what the encoder raises."""
        ended = threading.Event()
        thread = threading.Thread(target=self._work, args=(ended,), name="calibrated-encoder")
        self._log.take()
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        self._check()

    def take_steps(self) -> list[StepRecord]:
        """The frames encoded since the last call. Raises what the encoder raises."""
        self._check()
        return self._log.take()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self, ended: threading.Event) -> None:
        try:
            while not ended.is_set():
                began = time.monotonic()
                self._encoder.encode(self._pixels)
                seconds = time.monotonic() - began
                self._log.add(StepRecord(Activity.ENCODE, began, seconds, 0, 1, 0))
        except Exception as error:  # told to whoever waits for steps
            self._error = error


def run_loads(
    talk: EngineTalk,
    loads: Mapping[str, Load],
    encoder: EncoderBench | None,
    seconds: float,
    enough: Callable[[Steps], bool],
) -> Steps:
    """Keep engines, and an encoder if one is given, at work for so long, and until ``enough``.

    Gives up when that is not so after some times ``seconds``. Returns the steps of all. Raises
    EngineError and EncoderError.
    """
    if encoder is None:
        return _run(talk, loads, None, seconds, enough)
    with encoder.working():
        return _run(talk, loads, encoder, seconds, enough)


def _run(
    talk: EngineTalk,
    loads: Mapping[str, Load],
    encoder: EncoderBench | None,
    seconds: float,
    enough: Callable[[Steps], bool],
) -> Steps:
    steps: dict[str, list[StepRecord]] = {name: [] for name in loads}
    if encoder is not None:
        steps[encoder.name] = []
    for name, load in loads.items():
        talk.take_steps(name)
        talk.submit(name, *load.commands)
    missing = {name: load.n_events for name, load in loads.items()}
    began = time.monotonic()
    while any(missing.values()):
        name, _ = talk.wait()
        missing[name] -= 1
        if missing[name]:
            continue
        for each in loads:
            steps[each] += talk.take_steps(each)
        if encoder is not None:
            steps[encoder.name] += encoder.take_steps()
        passed = time.monotonic() - began
        if passed < seconds or (passed < _PATIENCE * seconds and not enough(steps)):
            talk.submit(name, *loads[name].commands)
            missing[name] = loads[name].n_events
    return steps


def beside(steps: Sequence[StepRecord], others: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps during nearly all of which ``others`` went on. Both are in order of time."""
    found, first = [], 0
    for step in steps:
        end = step.started + step.seconds
        while first < len(others) and others[first].started + others[first].seconds < step.started:
            first += 1
        covered = 0.0
        for other in others[first:]:
            if other.started >= end:
                break
            stop = min(end, other.started + other.seconds)
            covered += max(0.0, stop - max(step.started, other.started))
        if covered >= _COVERED * step.seconds:
            found.append(step)
    return found


class PairBench:
    """Slowdowns of engines and encoders whose costs alone are known.

    The same work is done alone and beside the other, so what the costs get wrong about it does not
    matter.
    """

    def __init__(
        self,
        talk: EngineTalk,
        costs: Mapping[str, EngineCosts],
        loads: Mapping[str, Sequence[Load]],
        encoder: EncoderBench | None,
        encode_s: float,
    ) -> None:
        self._talk, self._costs, self._loads = talk, costs, loads
        self._encoder, self._encode_s = encoder, encode_s
        self._alone: dict[Busy, float] = {}

    def measure_alone(self, name: str, seconds: float) -> None:
        """What an engine's loads take by themselves; must be called for each engine first."""
        for load in self._loads[name]:
            steps = run_loads(self._talk, {name: load}, None, seconds, lambda steps: True)
            for activity in load.activities:
                times = self._times(name, activity, steps[name])
                if times:
                    self._alone[name, activity] = statistics.median(times)

    def measure_engines(
        self, one: str, other: str, seconds: float
    ) -> dict[tuple[Busy, Busy], float]:
        """Slowdowns of two engines by each other; ``seconds`` are for all of it."""
        pairs = [
            (a, b) for a in self._loads[one] for b in self._loads[other] if a.disturbs or b.disturbs
        ]
        found: dict[tuple[Busy, Busy], float] = {}
        for a, b in pairs:
            found |= self._together((one, a), (other, b), None, seconds / len(pairs))
        return found

    def measure_encoder(self, name: str, seconds: float) -> dict[tuple[Busy, Busy], float]:
        """Slowdowns of an engine and the encoder by each other."""
        assert self._encoder is not None
        encode = self._encoder.name, Load((Activity.ENCODE,), (), 0)
        self._alone[encode[0], Activity.ENCODE] = 1.0
        loads, found = self._loads[name], dict[tuple[Busy, Busy], float]()
        for load in loads:
            found |= self._together((name, load), encode, self._encoder, seconds / len(loads))
        return found

    def _together(
        self,
        one: tuple[str, Load],
        other: tuple[str, Load],
        encoder: EncoderBench | None,
        seconds: float,
    ) -> dict[tuple[Busy, Busy], float]:
        """Slowdowns of two by each other, as far as one disturbs the other."""
        loads = {name: load for name, load in (one, other) if load.commands}
        views = [(a, b) for a, b in ((one, other), (other, one)) if b[1].disturbs]

        def enough(steps: Steps) -> bool:
            return all(len(beside(steps[a[0]], steps[b[0]])) >= _GOOD for a, b in views)

        steps = run_loads(self._talk, loads, encoder, seconds, enough)
        found: dict[tuple[Busy, Busy], float] = {}
        for (who, load), (company, its_load) in views:
            found |= self._slowdowns(who, load, (company, its_load.activities[0]), steps)
        return found

    def _slowdowns(
        self, who: str, load: Load, other: Busy, steps: Steps
    ) -> dict[tuple[Busy, Busy], float]:
        disturbed, found = beside(steps[who], steps[other[0]]), {}
        for activity in load.activities:
            times = self._times(who, activity, disturbed)
            alone = self._alone.get((who, activity), 0.0)
            if times and alone:
                # Less than 1 is noise: nobody gets faster by company.
                factor = max(1.0, statistics.median(times) / alone)
                found[(who, activity), other] = factor
        return found

    def _times(self, name: str, activity: Activity, steps: Sequence[StepRecord]) -> list[float]:
        """Of all steps of one kind, in units of what the costs say. Of decode steps only those of
        the largest batch: a row or two fight for memory, which four do not."""
        found = [step for step in steps if as_cost(step.activity) is activity]
        if activity is Activity.DECODE:
            most = max((step.sequences for step in found), default=0)
            found = [step for step in found if step.sequences == most]
        return [step.seconds / max(self._expected(name, step), 1e-9) for step in found]

    def _expected(self, name: str, step: StepRecord) -> float:
        activity = as_cost(step.activity)
        if activity is Activity.ENCODE:
            return self._encode_s
        costs = self._costs[name]
        if activity is Activity.PREFILL:
            return costs.prefill.seconds(step.rows, step.history_tokens)
        if activity is Activity.DECODE:
            return costs.decode.call_s(step.rows, step.history_tokens)
        move = costs.export if activity is Activity.EXPORT else costs.import_
        return move.seconds(step.n_bytes)
