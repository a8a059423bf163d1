"""Which steps of engines and encoders ran at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edge_vlm_ros.engines.step_record import Activity, StepRecord

HOLD_S = 3.0
"""A step is known when it has ended: one that has just ended may have had company that is told
only later. For so long we wait; company whose own step takes longer is not seen."""

Company = dict[tuple[str, Activity], float]
"""For how many seconds of a step others were at work, by name and activity."""


class _Track:
    """The steps of one engine or encoder, in order of time: the first ``done`` are looked at, but
    kept as company of others."""

    __slots__ = ("name", "steps", "done", "until")

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[StepRecord] = []
        self.done = 0
        self.until = -1e300

    def add(self, steps: Sequence[StepRecord]) -> None:
        if steps:
            self.steps.extend(steps)
            self.until = max(self.until, _end(steps[-1]))

    def forget(self, earliest: float) -> None:
        """Drop what is looked at and had ended by then."""
        n = 0
        while n < self.done and _end(self.steps[n]) <= earliest:
            n += 1
        del self.steps[:n]
        self.done -= n


class Overlaps:
    """Collects steps and gives each one back with its company, once that is known."""

    def __init__(self, names: Sequence[str]) -> None:
        self._tracks = {name: _Track(name) for name in names}

    def add(self, records: Mapping[str, Sequence[StepRecord]]) -> None:
        """Take new steps by name, oldest first, on one clock. Unknown names are left out."""
        for name, steps in records.items():
            if name in self._tracks:
                self._tracks[name].add(steps)

    def settled(self) -> Iterator[tuple[str, StepRecord, Company]]:
        """The steps whose company is known and that have not been given before; those of one name
        in order of time."""
        tracks = list(self._tracks.values())
        oldest = max((track.until for track in tracks), default=0.0) - HOLD_S
        horizon = min((max(track.until, oldest) for track in tracks), default=0.0)
        for track in tracks:
            others = [other for other in tracks if other is not track and other.steps]
            at = [0] * len(others)
            steps = track.steps
            while track.done < len(steps) and _end(steps[track.done]) <= horizon:
                step = steps[track.done]
                track.done += 1
                yield track.name, step, _company(step, others, at)
        earliest = min(
            (t.steps[t.done].started for t in tracks if t.done < len(t.steps)), default=horizon
        )
        for track in tracks:
            track.forget(min(earliest, horizon))


def _company(step: StepRecord, others: Sequence[_Track], at: list[int]) -> Company:
    """Who was at work during ``step``. ``at`` has for each of ``others`` where to begin to look; it
    goes along as later steps are looked at."""
    company: Company = {}
    start, end = step.started, _end(step)
    for number, other in enumerate(others):
        steps, n = other.steps, at[number]
        while n < len(steps) and _end(steps[n]) <= start:
            n += 1
        at[number] = n
        while n < len(steps):
            its = steps[n]
            begin = its.started
            if begin >= end:
                break
            stop = begin + its.seconds
            seconds = (stop if stop < end else end) - (begin if begin > start else start)
            if seconds > 0.0:  # of several encoders of one name a later step may end earlier
                key = (other.name, as_cost(its.activity))
                company[key] = company.get(key, 0.0) + seconds
            n += 1
    return company


def as_cost(activity: Activity) -> Activity:
    """What an activity is to the cost model: computing a history costs what a question does."""
    return Activity.PREFILL if activity is Activity.INGEST else activity


def _end(step: StepRecord) -> float:
    return step.started + step.seconds
