"""Profiles from what a calibration has measured and left on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge_vlm_ros.planning.cost_store import costs_from_json, default_folder

from .profile import EngineFacts, ModelFacts, Profile, ProfileError, measured_profile

_WRAP_TOKENS, _OPEN_TOKENS = 4, 16
"""Of the template, which a calibration does not record: a few tokens more or less."""


def newest_measured(folder: Path | None = None) -> Path:
    """The file written last. Raises ProfileError when there is none."""
    folder = folder or default_folder()
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise ProfileError(
            f"nothing has been measured on this machine yet ({folder} is empty): run "
            "`ros2 run edge_vlm_ros calibrate`, or start the node once"
        )
    return files[-1]


def load_measured(path: Path) -> Profile:
    """Read a calibration. Raises ProfileError, OSError."""
    try:
        document = json.loads(path.read_text())
        key = document["key"]
        return measured_profile(
            path.stem,
            costs_from_json(document["costs"]),
            tuple(_engine(engine) for engine in key["engines"]),
            _model(key),
        )
    except ProfileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ProfileError(f"{path} is no calibration that can be simulated: {reason}") from error


def _engine(key: Any) -> EngineFacts:
    return EngineFacts(
        name=key["name"],
        device=key["device"],
        max_parallel=key["max_parallel"],
        chunk_tokens=key["chunk_tokens"],
        batching=key["batching"],
    )


def _model(key: Any) -> ModelFacts:
    return ModelFacts(
        name=f"model {key['model'][:12]}",
        frame_tokens=key["encoder"]["n_tokens"],
        wrap_tokens=_WRAP_TOKENS,
        open_tokens=_OPEN_TOKENS,
        cell_bytes=max(engine["cell_bytes"] for engine in key["engines"]),
        context_tokens=key["context_tokens"],
    )
