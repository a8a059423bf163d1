"""What a machine's engines and encoders cost, from a YAML file that says where each number is from.

A number is written as a mapping: its ``value``, and either the ``source`` it was published in or
the ``assumption`` that it rests on. A file without these marks is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.planning.costs import (
    ENCODER,
    Busy,
    CostModel,
    EngineCosts,
    MoveCost,
    RowCost,
    even_batches,
)
from edge_vlm_ros.planning.overlaps import as_cost


class ProfileError(ValueError):
    """A profile that cannot be used; the text names the place."""


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a vision-language model, in tokens; ``cell_bytes`` are those of one token's KV."""

    name: str
    frame_tokens: int
    """Embeddings of one camera frame."""
    wrap_tokens: int
    """Around a frame, before and after it together."""
    open_tokens: int
    """Before the first frame."""
    cell_bytes: int
    context_tokens: int


@dataclass(frozen=True)
class EngineFacts:
    """One language engine; see EngineConfig."""

    name: str
    device: str
    max_parallel: int
    chunk_tokens: int
    batching: bool

    def config(self) -> EngineConfig:
        """Raises ValueError."""
        return EngineConfig(
            name=self.name,
            device=self.device,
            max_parallel=self.max_parallel,
            chunk_tokens=self.chunk_tokens,
        )


@dataclass(frozen=True)
class Profile:
    """A machine with a model on it. ``assumptions`` lists the numbers nobody has published, by
    their place in the file."""

    name: str
    description: str
    model: ModelFacts
    engines: tuple[EngineFacts, ...]
    encoder: str
    """What the vision encoder runs on."""
    costs: CostModel
    assumptions: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


def load_profile(path: Path) -> Profile:
    """Read a profile. Raises ProfileError, OSError."""
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ProfileError(f"{path} is no YAML: {error}") from error
    return _Reader(path).profile(document)


def measured_profile(
    name: str, costs: CostModel, engines: tuple[EngineFacts, ...], model: ModelFacts
) -> Profile:
    """A profile of what a calibration has measured. Raises ProfileError when the costs of an
    engine or of the encoder are not among it."""
    missing = [engine.name for engine in engines if engine.name not in costs.engines]
    if missing or ENCODER not in costs.encode_s:
        raise ProfileError(f"profile {name}: no costs of {', '.join(missing) or 'the encoder'}")
    return Profile(name, "measured", model, engines, ENCODER, costs)


class _Reader:
    """Turns a document into a profile and remembers where its numbers come from."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._assumptions: dict[str, str] = {}
        self._sources: dict[str, str] = {}

    def profile(self, document: Any) -> Profile:
        top = self._mapping(document, "profile")
        engines = self._mapping(self._get(top, "engines", "profile"), "engines")
        encoder = self._get(top, "encoder", "profile")
        facts = tuple(self._engine(name, node) for name, node in engines.items())
        if not facts or ENCODER in engines:
            raise self._error("engines", f"needs at least one, none of the name {ENCODER!r}")
        costs = CostModel(
            {name: self._costs(name, node) for name, node in engines.items()},
            {ENCODER: self._number(encoder, "encode_s", "encoder")},
            self._slowdowns(top.get("slowdowns", []), {*engines, ENCODER}),
        )
        return Profile(
            name=self._path.stem,
            description=str(self._get(top, "description", "profile")),
            model=self._model(self._get(top, "model", "profile")),
            engines=facts,
            encoder=str(self._get(encoder, "device", "encoder")),
            costs=costs,
            assumptions=self._assumptions,
            sources=self._sources,
        )

    def _model(self, node: Any) -> ModelFacts:
        def count(key: str) -> int:
            return int(self._number(node, key, "model"))

        return ModelFacts(
            name=str(self._get(node, "name", "model")),
            frame_tokens=count("frame_tokens"),
            wrap_tokens=count("wrap_tokens"),
            open_tokens=count("open_tokens"),
            cell_bytes=count("cell_bytes"),
            context_tokens=count("context_tokens"),
        )

    def _engine(self, name: str, node: Any) -> EngineFacts:
        place = f"engines.{name}"
        facts = EngineFacts(
            name=name,
            device=str(self._get(node, "device", place)),
            max_parallel=int(self._number(node, "max_parallel", place)),
            chunk_tokens=int(self._number(node, "chunk_tokens", place)),
            batching=bool(self._get(node, "batching", place)),
        )
        try:
            facts.config()
        except ValueError as error:
            raise self._error(place, str(error)) from error
        return facts

    def _costs(self, name: str, node: Any) -> EngineCosts:
        place = f"engines.{name}"

        def rows(key: str) -> tuple[float, float, float]:
            part, where = self._get(node, key, place), f"{place}.{key}"
            fixed, row, history = (
                self._number(part, name, where) for name in ("fixed_s", "row_s", "row_history_s")
            )
            return fixed, row, history

        def move(key: str) -> MoveCost:
            part, where = self._get(node, key, place), f"{place}.{key}"
            return MoveCost(*(self._number(part, name, where) for name in ("fixed_s", "byte_s")))

        return EngineCosts(
            RowCost(*rows("prefill")),
            even_batches(*rows("decode")),
            move("export"),
            move("import"),
            self._number(node, "fork_s", place),
        )

    def _slowdowns(self, nodes: Any, names: set[str]) -> dict[tuple[Busy, Busy], float]:
        """Each entry holds for every activity of ``doing`` beside every one of ``busy_with``."""
        factors: dict[tuple[Busy, Busy], float] = {}
        for index, node in enumerate(nodes):
            place = f"slowdowns[{index}]"
            factor = self._number(node, "factor", place)
            of, beside = (str(self._get(node, key, place)) for key in ("of", "beside"))
            if not {of, beside} <= names:
                raise self._error(place, f"{of} or {beside} is neither an engine nor the encoder")
            for doing in self._activities(node, "doing", place):
                for busy in self._activities(node, "busy_with", place):
                    factors[(of, doing), (beside, busy)] = factor
        return factors

    def _activities(self, node: Any, key: str, place: str) -> list[Activity]:
        try:
            return [as_cost(Activity(name)) for name in self._get(node, key, place)]
        except ValueError as error:
            raise self._error(f"{place}.{key}", str(error)) from error

    # ---------------------------------------------------------------- the document
    def _number(self, node: Any, key: str, place: str) -> float:
        entry = self._mapping(self._get(node, key, place), f"{place}.{key}")
        where = f"{place}.{key}"
        value = self._get(entry, "value", where)
        marks = [mark for mark in ("source", "assumption") if str(entry.get(mark, "")).strip()]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise self._error(where, f"value is {value!r}, it must be a number of 0 or more")
        if len(marks) != 1 or set(entry) - {"value", "source", "assumption"}:
            raise self._error(where, "needs a value, and a source or an assumption")
        known = self._sources if marks == ["source"] else self._assumptions
        known[where] = " ".join(str(entry[marks[0]]).split())
        return float(value)

    def _get(self, node: Any, key: str, place: str) -> Any:
        mapping = self._mapping(node, place)
        if key not in mapping:
            raise self._error(place, f"has no {key}")
        return mapping[key]

    def _mapping(self, node: Any, place: str) -> dict[str, Any]:
        if not isinstance(node, dict):
            raise self._error(place, "must be a mapping")
        return node

    def _error(self, place: str, text: str) -> ProfileError:
        return ProfileError(f"{self._path}: {place}: {text}")
