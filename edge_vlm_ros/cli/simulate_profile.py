"""The profile that `simulate` is told to use: found, and its form checked with words for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from edge_vlm_ros.engines.step_record import Activity
from edge_vlm_ros.model_profile import explain
from edge_vlm_ros.ros.share import share_directory
from edge_vlm_ros.simulation.measured import load_measured, newest_measured
from edge_vlm_ros.simulation.profile import Profile, ProfileError, load_profile

_Text = Annotated[str, Field(min_length=1)]
_Whole = Annotated[int, Field(ge=1)]
_Activity = Annotated[Activity, Field(strict=False)]


class _Part(BaseModel):
    """What is not named here is for the loader to judge."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Size(_Part):
    value: _Whole


class _Count(_Part):
    value: Annotated[int, Field(ge=0)]


class _Cost(_Part):
    value: Annotated[float, Field(ge=0)]


def _takes_time(costs: dict[str, _Cost]) -> dict[str, _Cost]:
    if not any(cost.value for name, cost in costs.items() if name != "row_history_s"):
        raise ValueError("a step would take no time; fixed_s or row_s must be above 0")
    return costs


_Step = Annotated[dict[str, _Cost], AfterValidator(_takes_time)]


class _Factor(_Part):
    value: Annotated[float, Field(gt=0)]


class _Model(_Part):
    name: _Text
    frame_tokens: _Size
    wrap_tokens: _Count
    open_tokens: _Count
    cell_bytes: _Size
    context_tokens: _Size


class _Engine(_Part):
    device: _Text
    batching: bool
    max_parallel: _Size
    chunk_tokens: _Size
    prefill: _Step
    decode: _Step
    export: dict[str, _Cost]
    import_: dict[str, _Cost] = Field(alias="import")
    fork_s: _Cost


class _Encoder(_Part):
    device: _Text
    encode_s: _Cost


class _Slowdown(_Part):
    of: _Text
    beside: _Text
    doing: list[_Activity]
    busy_with: list[_Activity]
    factor: _Factor


class _Profile(_Part):
    """A profile's YAML. One that misspells `slowdowns` must not be simulated without them."""

    model_config = ConfigDict(extra="forbid")

    description: _Text
    model: _Model
    engines: dict[str, _Engine]
    encoder: _Encoder
    slowdowns: list[_Slowdown] = []


class _MeasuredEngine(_Part):
    name: _Text
    device: _Text
    max_parallel: _Whole
    chunk_tokens: _Whole
    batching: bool
    cell_bytes: _Whole


class _MeasuredEncoder(_Part):
    n_tokens: _Whole


class _Key(_Part):
    model: _Text
    context_tokens: _Whole
    encoder: _MeasuredEncoder
    engines: list[_MeasuredEngine] = Field(min_length=1)


class _Calibration(_Part):
    """A calibration's JSON, as far as a profile is made from it; the costs are the loader's."""

    key: _Key
    costs: dict[str, Any]


def read_profile(name: str) -> Profile:
    """A profile by its name in config/profiles, or by its path, or `measured`.

    Raises ProfileError, which names all wrong fields.
    """
    path = newest_measured() if name == "measured" else _path(name)
    measured = path.suffix == ".json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot read the profile {path}: {error}") from error
    try:
        document = json.loads(text) if measured else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = "JSON" if measured else "YAML"
        raise ProfileError(f"{path} is not valid {kind}: {error}") from error
    if not isinstance(document, dict):
        raise ProfileError(
            f"{path} is not a profile: it must be a mapping with description, model, engines and "
            "encoder; start from config/profiles/rk3588.yaml"
        )
    try:
        (_Calibration if measured else _Profile).model_validate(document)
    except ValidationError as error:
        lines = "\n".join(explain(error))
        raise ProfileError(f"profile {path} cannot be simulated:\n{lines}") from error
    return load_measured(path) if measured else load_profile(path)


def _path(name: str) -> Path:
    folder = share_directory() / "config" / "profiles"
    shipped = folder / f"{name}.yaml"
    path = shipped if shipped.is_file() else Path(name).expanduser()
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise ProfileError(f"{name!r} is neither a file nor one of the profiles: {known}")
    return path
