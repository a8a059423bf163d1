"""Parameter files of the node, read without a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from edge_vlm_ros.runtime.config import ConfigError, RuntimeConfig

from .parameter_checks import find_spec, name_hint, value_problem
from .parameters import ENGINE_PARAMETERS, NODE_PARAMETERS, STREAM_PARAMETERS, ParameterSpec
from .settings import Values, runtime_config

_NODE = "edge_vlm"
_SECTIONS = ("/**", f"/**/{_NODE}", _NODE, f"/{_NODE}")
"""Names in a file that mean the node, in the order in which they override each other."""
_DEFAULTS: dict[str, Any] = {spec.name: spec.default for spec in NODE_PARAMETERS}


def read_config(path: Path | None) -> RuntimeConfig:
    """The runtime's configuration as the node would make it from a parameter file, or from the
    defaults alone. Raises OSError, ConfigError and what ``runtime_config`` raises."""
    return runtime_config(*read_values(path))


def read_values(path: Path | None) -> tuple[Values, dict[str, Values], dict[str, Values]]:
    """All parameters as the node would have them from a file, or the defaults.

    Returns:
        The node's by name, and those of each stream and of each engine, as ``runtime_config``
        takes them.

    Raises:
        OSError: the file cannot be read.
        ConfigError: a value that the node would refuse, or a name that means nothing.
    """
    given = {} if path is None else _given(path)
    for name, value in given.items():
        _check(name, value, given)
    node = _values("", NODE_PARAMETERS, given)
    return (
        node,
        {name: _values(f"{name}.", STREAM_PARAMETERS, given) for name in node["streams"]},
        {name: _values(f"engine.{name}.", ENGINE_PARAMETERS, given) for name in node["engines"]},
    )


def _given(path: Path) -> dict[str, Any]:
    """All parameters in a file, by full name."""
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    sections = document if isinstance(document, Mapping) else {}
    found = [sections[name] for name in _SECTIONS if name in sections]
    if not found:
        raise ConfigError(f"{path} has no parameters for the node: no section {_SECTIONS[0]}")
    given: dict[str, Any] = {}
    for section in found:
        if not isinstance(section, Mapping) or "ros__parameters" not in section:
            raise ConfigError(f"{path}: a section without ros__parameters")
        given |= dict(_flat("", section["ros__parameters"] or {}))
    return given


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _values(
    prefix: str, specs: Iterable[ParameterSpec], given: Mapping[str, Any]
) -> dict[str, Any]:
    return {spec.name: _value(given.get(prefix + spec.name), spec) for spec in specs}


def _value(given: Any, spec: ParameterSpec) -> Any:
    """What is given, or the default; an empty list arrives as nothing."""
    if given is None:
        return spec.default
    return float(given) if isinstance(spec.default, float) else given


def _check(name: str, value: Any, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value that the node would refuse, and for names that mean nothing:
    somebody who measures something wants to know."""
    spec = find_spec(name)
    if spec is None:
        if name.startswith("qos_overrides.") or name == "use_sim_time":
            return
        raise ConfigError(f"unknown parameter {name}{name_hint(name, _known(given))}")
    problem = _type_problem(name, value, spec) or value_problem(name, value)
    if problem is not None:
        raise ConfigError(problem)


def _known(given: Mapping[str, Any]) -> Iterator[str]:
    """The names of all parameters that a node with these streams and engines has."""
    for owners, prefix, specs in (
        ("streams", "", STREAM_PARAMETERS),
        ("engines", "engine.", ENGINE_PARAMETERS),
    ):
        names = given.get(owners)
        for owner in names if isinstance(names, list) else _DEFAULTS[owners]:
            yield from (f"{prefix}{owner}.{spec.name}" for spec in specs)
    yield from (spec.name for spec in NODE_PARAMETERS)


def _type_problem(name: str, value: Any, spec: ParameterSpec) -> str | None:
    if value is None or spec.default == []:
        return None  # value_problem looks at lists of numbers
    wanted = (int, float) if isinstance(spec.default, float) else (type(spec.default),)
    if type(value) not in wanted:
        return f"{name} must be of type {type(spec.default).__name__}; not {value!r}"
    if isinstance(value, int | float) and spec.range is not None:
        low, high = spec.range
        if not low <= value <= high:
            return f"{name} must be from {low:g} to {high:g}; not {value!r}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not all(isinstance(item, str) for item in value):
            return f"{name} must be a list of texts; not {value!r}"
    return None
