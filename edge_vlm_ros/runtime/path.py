"""How an engine gets the history that a question needs."""

from __future__ import annotations

from enum import Enum


class Path(Enum):
    """``ANY`` takes what is possible, in this order: local, a fork of an equal prefix, import,
    replay."""

    ANY = ""
    LOCAL = "local"
    IMPORT = "import"
    REPLAY = "replay"
