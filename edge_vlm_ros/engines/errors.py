"""Everything that can go wrong in a language engine, by name."""

from __future__ import annotations


class EngineError(RuntimeError):
    """Base of all engine errors."""


class ModelLoadError(EngineError):
    """The model file cannot be read."""


class UnsupportedModelError(EngineError):
    """The model loads, but its state cannot be versioned and forked."""


class ContextError(EngineError):
    """No context of this size and type can be made from the model."""


class DecodeError(EngineError):
    """A native decode call failed. The cells of that call must be trimmed."""


class NoCellsError(DecodeError):
    """The KV cache has no free cells for a batch (native code 1)."""


class DecodeAbortedError(DecodeError):
    """A decode call was aborted (native code 2); earlier micro-batches are in the cache."""


class InvalidBatchError(DecodeError):
    """llama.cpp refused a batch, e.g. for a position that does not follow on (native code -1)."""


class ComputeError(DecodeError):
    """The backend failed while computing (native codes below -1)."""


class TrunkError(EngineError):
    """A command names a trunk, or a place in it, that the engine does not have."""


class NoSequenceError(EngineError):
    """All sequence ids of the context are in use."""
