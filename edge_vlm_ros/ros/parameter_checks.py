"""What a parameter's name means, and what is wrong with a value or with the time of a change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from edge_vlm_ros.engines.device_text import parse_device
from edge_vlm_ros.planning.plan import Objective
from edge_vlm_ros.planning.policies import make_policy

from .parameters import (
    ENGINE_PARAMETERS,
    NODE_PARAMETERS,
    STREAM_PARAMETERS,
    Change,
    ParameterSpec,
)

POLICY = "planning.policy"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_ENGINE = "engine."
_NODE_SPECS = {spec.name: spec for spec in NODE_PARAMETERS}
_STREAM_SPECS = {spec.name: spec for spec in STREAM_PARAMETERS}
_ENGINE_SPECS = {spec.name: spec for spec in ENGINE_PARAMETERS}
_RESERVED_NAMES = frozenset(
    ["engine", "qos_overrides", "use_sim_time", *(n.partition(".")[0] for n in _NODE_SPECS)]
)


def find_spec(name: str) -> ParameterSpec | None:
    """The table's entry of a parameter name, those of streams and engines included; None if there
    is none."""
    if name in _NODE_SPECS:
        return _NODE_SPECS[name]
    if (engine := engine_of(name)) is not None:
        return _ENGINE_SPECS.get(name.removeprefix(f"{_ENGINE}{engine}."))
    stream, _, rest = name.partition(".")
    return None if stream in _RESERVED_NAMES else _STREAM_SPECS.get(rest)


def engine_of(name: str) -> str | None:
    """NAME of a parameter engine.NAME.something; None for any other parameter."""
    engine, dot, _ = name.removeprefix(_ENGINE).partition(".")
    return engine if name.startswith(_ENGINE) and dot else None


def name_hint(name: str, known: Iterable[str]) -> str:
    """What helps whoever wrote a name that is none: the nearest known one, and where all are."""
    close = get_close_matches(name, list(known), n=1)
    nearest = f"; did you mean {close[0]}?" if close else "."
    return f"{nearest} README.md lists all parameters"


def moved_parameter(name: str, engines: tuple[str, ...]) -> str | None:
    """Where a parameter of the time when there was one engine is now, in a sentence, or None."""
    setting = name.removeprefix(_ENGINE)
    if name == "engine.name":
        return "parameter engine.name is not used: engines are named in `engines`"
    if not name.startswith(_ENGINE) or setting not in _ENGINE_SPECS:
        return None
    return f"parameter {name} is not used: each engine has its own, here " + " and ".join(
        f"{_ENGINE}{engine}.{setting}" for engine in engines
    )


def value_problem(name: str, value: object) -> str | None:
    """What is wrong with a value beyond its type and range, or None."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.choices and value not in spec.choices:
        return f"{name} must be {spec.constraints.split(';')[0]}; not {value!r}"
    if name in ("streams", "engines") and isinstance(value, list | tuple):
        return _names_problem(name, [str(item) for item in value])
    if spec.default == []:
        return _numbers_problem(name, spec, value)
    if spec is _ENGINE_SPECS["device"]:
        return _device_problem(name, str(value))
    return None


def policy_problem(
    policy: str, engines: Sequence[str], streams: Sequence[str], objective: Objective
) -> str | None:
    """What is wrong with the text of a policy for these engines and streams, or None."""
    try:
        make_policy(policy, engines, streams, objective)
    except ValueError as error:
        return f"{POLICY}: {error}"
    return None


def change_problem(name: str, configured: bool) -> str | None:
    """Why a parameter cannot be changed in the node's state, or None."""
    spec = find_spec(name)
    if spec is None or not configured or spec.change is not Change.UNCONFIGURED:
        return None
    return (
        f"{name} takes effect only when the node is configured: deactivate and clean up the node "
        "first, set it, then configure again"
    )


def _device_problem(name: str, device: str) -> str | None:
    try:
        # Whether a remote server is allowed is another parameter's to say: checked with all.
        parse_device(device, allow_remote=True)
    except ValueError as error:
        return f"{name}: {error}"
    return None


def _names_problem(name: str, given: list[str]) -> str | None:
    kind = name.removesuffix("s")
    if not given:
        return f"{name} must name at least one {kind}"
    if len(set(given)) != len(given):
        return f"{name} must be different names, not {given}"
    for item in given:
        if not _NAME.match(item):
            return (
                f"{kind} name {item!r} cannot be part of a topic: use at most 64 lower-case "
                "letters, digits and _, starting with a letter"
            )
        if kind == "stream" and item in _RESERVED_NAMES:
            return f"stream name {item!r} is the prefix of other parameters: choose another"
    return None


def _numbers_problem(name: str, spec: ParameterSpec, value: object) -> str | None:
    assert spec.range is not None
    low, high = spec.range
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else None
    if numbers is not None and all(type(n) is int and low <= n <= high for n in numbers):
        return None
    shown = value if numbers is None else numbers
    return f"{name} must be a list of whole numbers from {low:g} to {high:g}; not {shown!r}"
