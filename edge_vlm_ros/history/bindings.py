"""The ways in which a question names the version it is to be answered from."""

from __future__ import annotations

from dataclasses import dataclass


class BindingError(ValueError):
    """The version a question asks for does not exist (any more)."""


@dataclass(frozen=True)
class NewestRegistered:
    """The newest version registered before the question (the default): waits for its frames."""


@dataclass(frozen=True)
class NewestPublished:
    """The newest version that can be answered without waiting."""


@dataclass(frozen=True)
class Stamp:
    """The newest registered frame whose stamp is not later than ``stamp_ns`` (nanoseconds)."""

    stamp_ns: int


@dataclass(frozen=True)
class VersionBinding:
    """Exactly this version."""

    epoch: int
    n: int


Binding = NewestRegistered | NewestPublished | Stamp | VersionBinding
