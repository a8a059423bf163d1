"""Everything that can go wrong in a language engine, by name."""

from __future__ import annotations


class EngineError(RuntimeError):
    """Base of all engine errors."""


class ModelLoadError(EngineError):
    """The model file cannot be read."""


class DeviceError(EngineError):
    """A device that does not exist, cannot be reached or may not be used."""


class NativeAbortError(EngineError):
    """The native library gave up inside a call, which would have ended the process. The call never
    returns: what it worked on must be left alone, never freed."""


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


class ExportError(EngineError):
    """llama.cpp gave no state, or less than it announced, of a range of cells."""


class SnapshotError(EngineError):
    """A snapshot that must not be imported. Nothing was touched."""


class ForeignFileError(SnapshotError):
    """Bytes that are no snapshot at all."""


class HeaderVersionError(SnapshotError):
    """A snapshot of another version of this software."""


class TruncatedSnapshotError(SnapshotError):
    """A snapshot that ends too early."""


class DamagedSnapshotError(SnapshotError):
    """The checksum does not fit, or bytes follow the end."""


class OtherModelError(SnapshotError):
    """KV of another model file, however equal its shapes are."""


class OtherKvTypeError(SnapshotError):
    """K and V rows of another type."""


class OtherFlashAttentionError(SnapshotError):
    """Flash attention on one side only: V is stored transposed on the other."""


class OtherRotationError(SnapshotError):
    """K and V were rotated before they were quantised on one side only."""


class OtherRopeError(SnapshotError):
    """Other settings of rotary positions."""


class OtherGeometryError(SnapshotError):
    """Another number of layers or size of rows."""


class WrongRangeError(SnapshotError):
    """The range of positions is not the one that is wanted, or does not follow on."""


class OtherHistoryError(SnapshotError):
    """The prefix identities differ: KV of another history or epoch."""


class BlobError(SnapshotError):
    """llama.cpp's state blob is not what its header says."""


class ImportRefusedError(SnapshotError):
    """llama.cpp took a snapshot not at all or not as a whole, e.g. for want of cells."""
