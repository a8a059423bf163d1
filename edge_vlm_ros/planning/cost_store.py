"""Measured costs on disk: one readable file for each machine, model and choice of engines."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge_vlm_ros.engines.step_record import Activity

from .costs import BatchCost, Busy, CostModel, EngineCosts, MoveCost, RowCost

_logger = logging.getLogger(__name__)

FORMAT = 3
"""Of the file. Others are measured anew, not read."""

CostKey = Mapping[str, Any]
"""What the costs hold for, in JSON's types: all that would change them."""


def default_folder() -> Path:
    """``calibration`` in the user's cache folder of this package (XDG base directories)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says to ignore relative paths.
    root = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return root / "edge_vlm_ros" / "calibration"


def cost_file(folder: Path, key: CostKey) -> Path:
    """Where the costs of ``key`` are kept."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{digest[:16]}.json"


def load_costs(folder: Path, key: CostKey) -> CostModel | None:
    """The stored costs; None, with a line in the log, when there are none that can be used."""
    path = cost_file(folder, key)
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise ValueError(f"it has format {document['format']}, this version reads {FORMAT}")
        if document["key"] != json.loads(json.dumps(key)):
            raise ValueError("it was measured with something else")
        return costs_from_json(document["costs"])
    except FileNotFoundError:
        _logger.info("no stored costs in %s", path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        _logger.warning("stored costs in %s cannot be used: %s", path, reason)
    return None


def store_costs(folder: Path, key: CostKey, costs: CostModel) -> Path:
    """Write the costs, all or nothing; returns the file. Raises OSError."""
    path = cost_file(folder, key)
    document = {
        "format": FORMAT,
        "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "key": key,
        "costs": costs_to_json(costs),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
        try:
            json.dump(document, file, indent=2)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    return path


def costs_to_json(costs: CostModel) -> dict[str, Any]:
    """Seconds, and seconds per token or byte, under the names of the dataclasses."""
    return {
        "engines": {name: _engine_to_json(engine) for name, engine in costs.engines.items()},
        "encode_s": dict(costs.encode_s),
        "slowdowns": [
            {
                "of": {"name": who, "activity": activity.value},
                "beside": {"name": other, "activity": its_activity.value},
                "factor": factor,
            }
            for ((who, activity), (other, its_activity)), factor in costs.slowdowns.items()
        ],
    }


def costs_from_json(document: Mapping[str, Any]) -> CostModel:
    """The other way. Raises ValueError, KeyError, TypeError or AttributeError for anything that
    ``costs_to_json`` does not write."""
    return CostModel(
        engines={name: _engine_from_json(of) for name, of in document["engines"].items()},
        encode_s={name: _number(seconds) for name, seconds in document["encode_s"].items()},
        slowdowns={
            (_busy(entry["of"]), _busy(entry["beside"])): _factor(entry["factor"])
            for entry in document["slowdowns"]
        },
    )


def _engine_to_json(costs: EngineCosts) -> dict[str, Any]:
    return {
        "prefill": _rows_to_json(costs.prefill),
        "decode": {
            "calls": [{"answers": n, "seconds": s} for n, s in costs.decode.calls],
            "row_history_s": costs.decode.row_history_s,
        },
        "export": {"fixed_s": costs.export.fixed_s, "byte_s": costs.export.byte_s},
        "import": {"fixed_s": costs.import_.fixed_s, "byte_s": costs.import_.byte_s},
        "fork_s": costs.fork_s,
    }


def _rows_to_json(cost: RowCost) -> dict[str, float]:
    return {"fixed_s": cost.fixed_s, "row_s": cost.row_s, "row_history_s": cost.row_history_s}


def _engine_from_json(document: Mapping[str, Any]) -> EngineCosts:
    return EngineCosts(
        prefill=_rows_from_json(document["prefill"]),
        decode=_batches_from_json(document["decode"]),
        export=_move_from_json(document["export"]),
        import_=_move_from_json(document["import"]),
        fork_s=_number(document["fork_s"]),
    )


def _rows_from_json(document: Mapping[str, Any]) -> RowCost:
    return RowCost(*(_number(document[part]) for part in ("fixed_s", "row_s", "row_history_s")))


def _batches_from_json(document: Mapping[str, Any]) -> BatchCost:
    calls = tuple((int(call["answers"]), _number(call["seconds"])) for call in document["calls"])
    if not calls or any(n >= more for (n, _), (more, _) in pairwise(calls)):
        raise ValueError("calls of decoding are those of ever more answers")
    return BatchCost(calls, _number(document["row_history_s"]))


def _move_from_json(document: Mapping[str, Any]) -> MoveCost:
    return MoveCost(_number(document["fixed_s"]), _number(document["byte_s"]))


def _busy(document: Mapping[str, Any]) -> Busy:
    return str(document["name"]), Activity(document["activity"])


def _factor(value: Any) -> float:
    factor = _number(value)
    if factor == 0:
        raise ValueError("a factor is above 0")
    return factor


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is no number of seconds")
    return number
