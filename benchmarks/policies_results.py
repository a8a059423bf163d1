"""One run of one policy, and the file that keeps all runs: a line of JSON each, written at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from edge_vlm_ros.simulation.result import percentile

__all__ = ["Key", "Memory", "Results", "Run", "percentile", "read_runs"]


@dataclass(frozen=True, order=True)
class Key:
    """``workload`` is ``burst`` or ``live``; ``load`` is 0 for a burst, else questions over what
    the best single engine could answer. ``number`` counts runs from 1."""

    setup: str
    model: str
    kv_type: str
    workload: str
    load: float
    policy: str
    number: int


@dataclass(frozen=True)
class Memory:
    """Bytes: of this process, and of all RPC servers that it started."""

    node_rss: int
    node_pss: int
    servers_rss: int
    servers_pss: int


@dataclass(frozen=True)
class Run:
    """What one run measured. Times are in seconds unless they say otherwise.

    ``total_s`` goes from the first frame to the end of the last answer. ``ttft_ms`` and
    ``complete_ms`` count from when a question comes in the workload, whether it is asked then or,
    as with ``serial``, later. Of ``unfinished`` answers, which were cancelled, ``ttft_ms`` has the
    time that they had waited if they had not begun. ``frames`` were encoded, ``frames_dropped``
    not.
    """

    key: Key
    total_s: float
    tokens: int
    ttft_ms: tuple[float, ...]
    complete_ms: tuple[float, ...]
    rejected: int
    unfinished: int
    frames: int
    frames_dropped: int
    answers: Mapping[str, int]
    """By decoding engine."""
    paths: Mapping[str, int]
    full_imports: int
    delta_imports: int
    replayed_tokens: int
    handoffs: int
    imported_bytes: int
    busy_s: Mapping[str, float]
    ingest_engines: Mapping[str, str]
    memory: Memory
    decision_mean_us: float
    decision_max_us: float
    first_token_error: float
    finished_error: float
    question_rate_hz: float = 0.0
    fps: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.total_s

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Run:
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in document.items() if name in known}
        values["key"] = Key(**values["key"])
        values["memory"] = Memory(**values["memory"])
        for name in ("ttft_ms", "complete_ms"):
            values[name] = tuple(values[name])
        return cls(**values)


class Results:
    """Runs so far, those in ``path`` included: what is there is not done again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        there = [path] if path is not None and path.is_file() else []
        self.runs: list[Run] = read_runs(there)
        self._capacities = {
            tuple(document["capacity_of"]): (document["questions_hz"], document["frames_hz"])
            for document in _documents(there)
            if "capacity_of" in document
        }
        if path is not None and there and not path.read_text().endswith("\n"):
            with path.open("a") as file:
                file.write("\n")  # what comes next must not end a line that was cut off

    def __contains__(self, key: Key) -> bool:
        return any(run.key == key for run in self.runs)

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self._write({"run": run.to_json()})

    def capacity(self, setup: str, model: str, kv_type: str) -> tuple[float, float] | None:
        """Questions a second, and frames a second, that all live loads are relative to: runs that
        are added later must be relative to the same."""
        return self._capacities.get((setup, model, kv_type))

    def add_capacity(
        self, setup: str, model: str, kv_type: str, questions_hz: float, frames_hz: float
    ) -> None:
        self._capacities[setup, model, kv_type] = questions_hz, frames_hz
        self.note(
            capacity_of=[setup, model, kv_type], questions_hz=questions_hz, frames_hz=frames_hz
        )

    def note(self, **about: Any) -> None:
        """Keep something else that matters, such as the machine or a failure."""
        self._write(about)

    def _write(self, document: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        with self._path.open("a") as file:
            file.write(json.dumps(document) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """All runs of some files; a last line that was not written to its end is left out."""
    return [Run.from_json(document["run"]) for document in _documents(paths) if "run" in document]


def _documents(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
