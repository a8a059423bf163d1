"""The logical history of a stream: items, versions, identity. Imports nothing of ours."""

from __future__ import annotations

from .bindings import (
    Binding,
    BindingError,
    NewestPublished,
    NewestRegistered,
    Stamp,
    VersionBinding,
)
from .epoch import Epoch
from .grid import Grid, embedding_positions
from .history import FrameShape, History, HistoryFull
from .identity import extend_identity, root_identity
from .items import FrameItem, Item, TextItem, TextRole
from .limits import HistoryLimits
from .version import Version, VersionState

__all__ = [
    "Binding",
    "BindingError",
    "Epoch",
    "FrameItem",
    "FrameShape",
    "Grid",
    "History",
    "HistoryFull",
    "HistoryLimits",
    "Item",
    "NewestPublished",
    "NewestRegistered",
    "Stamp",
    "TextItem",
    "TextRole",
    "Version",
    "VersionBinding",
    "VersionState",
    "embedding_positions",
    "extend_identity",
    "root_identity",
]
