"""Exported KV of a range of a history: what it is of, and its form as bytes."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import crc32c
import numpy as np
from numpy.typing import NDArray

from .errors import (
    DamagedSnapshotError,
    ForeignFileError,
    HeaderVersionError,
    TruncatedSnapshotError,
)

MAGIC = b"\x89EVKV\r\n\x1a"
"""A byte above 127 and both line ends: what text conversions spoil is found out at once."""

HEADER_VERSION = 2

M_ROPE_TYPES = (8, 40)
"""Of enum llama_rope_type: several positions per token."""

_START = struct.Struct("<8sI")
_LAYOUT = struct.Struct("<48s32s8s??IIIidd")
_RANGE = struct.Struct("<QQQQ32s32sQ")
_CHECKSUM = struct.Struct("<I")
_CHECKSUM_AT = _START.size + _LAYOUT.size + _RANGE.size
HEADER_BYTES = _CHECKSUM_AT + _CHECKSUM.size


@dataclass(frozen=True)
class Layout:
    """Everything that must agree for exported KV to mean the same on another engine.

    llama.cpp itself checks the row sizes and types only; neither the model nor its rope settings
    nor the rotation of quantised KV.
    """

    architecture: str
    model_digest: bytes
    """SHA-256 of the model file."""
    kv_type: str
    """Of K and of V."""
    flash_attention: bool
    """Decides whether V is stored transposed."""
    kv_rotation: bool
    """Whether K and V are rotated before they are quantised."""
    n_layer: int
    n_embd_k: int
    """Values per K row of one layer."""
    n_embd_v: int
    rope_type: int
    rope_freq_base: float
    rope_freq_scale: float

    @property
    def has_grids(self) -> bool:
        """Whether cells have more than one position (M-RoPE)."""
        return self.rope_type in M_ROPE_TYPES

    @property
    def fingerprint(self) -> bytes:
        """16 bytes; equal for equal layouts."""
        return hashlib.blake2b(_layout_bytes(self), digest_size=16).digest()


@dataclass(frozen=True)
class SnapshotHeader:
    """What a snapshot is of: KV cells ``start_tokens`` .. ``stop_tokens`` - 1 of the history whose
    prefix identities (32 bytes each) at these places are given. The first of them is at position
    ``start_positions``, what follows the last one at ``stop_positions``.
    """

    layout: Layout
    start_tokens: int
    stop_tokens: int
    start_positions: int
    stop_positions: int
    start_identity: bytes
    stop_identity: bytes


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A header and llama.cpp's state blob, uint8 [n_bytes], with their checksum (CRC-32C)."""

    header: SnapshotHeader
    blob: NDArray[np.uint8]
    checksum: int

    @property
    def n_bytes(self) -> int:
        return self.blob.nbytes

    @classmethod
    def seal(cls, header: SnapshotHeader, blob: NDArray[np.uint8]) -> Snapshot:
        """A snapshot of this content. The blob, uint8 [n_bytes] contiguous, is not copied."""
        return cls(header, blob, _checksum(_header_bytes(header, blob.nbytes), blob))

    def verify(self) -> None:
        """Raises DamagedSnapshotError when the content is not what was sealed."""
        actual = _checksum(_header_bytes(self.header, self.blob.nbytes), self.blob)
        if actual != self.checksum:
            raise DamagedSnapshotError(
                f"the snapshot is damaged: its checksum is {actual:08x}, {self.checksum:08x} was "
                "written; export it again"
            )

    def to_bytes(self) -> bytes:
        """Header, checksum, blob: little-endian, no padding."""
        header = _header_bytes(self.header, self.blob.nbytes)
        return b"".join((header, _CHECKSUM.pack(self.checksum), self.blob.data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """Read what ``to_bytes`` wrote. The blob is a view into ``data``.

        Raises ForeignFileError, HeaderVersionError, TruncatedSnapshotError, DamagedSnapshotError.
        """
        _check_start(data)
        if len(data) < HEADER_BYTES:
            raise TruncatedSnapshotError(
                f"the snapshot is truncated: {len(data)} bytes, its header alone has {HEADER_BYTES}"
            )
        *where, n_blob = _RANGE.unpack_from(data, _START.size + _LAYOUT.size)
        _check_length(len(data) - HEADER_BYTES, n_blob)
        blob = np.frombuffer(data, np.uint8, n_blob, HEADER_BYTES)
        (checksum,) = _CHECKSUM.unpack_from(data, _CHECKSUM_AT)
        actual = _checksum(data[:_CHECKSUM_AT], blob)
        if actual != checksum:
            raise DamagedSnapshotError(
                f"the snapshot is damaged: its checksum is {actual:08x}, {checksum:08x} was "
                "written; export it again"
            )
        layout = _read_layout(data)
        header = SnapshotHeader(layout, *where)
        return cls(header, blob, checksum)


def _check_start(data: bytes) -> None:
    magic = data[: len(MAGIC)]
    if not MAGIC.startswith(magic) or not magic:
        raise ForeignFileError("this is not a snapshot of KV state: it begins otherwise")
    if len(data) < _START.size:
        raise TruncatedSnapshotError(f"the snapshot is truncated: it ends after {len(data)} bytes")
    version = _START.unpack_from(data)[1]
    if version != HEADER_VERSION:
        raise HeaderVersionError(
            f"the snapshot has header version {version}, this software reads {HEADER_VERSION}: "
            "export it again"
        )


def _check_length(n: int, expected: int) -> None:
    if n < expected:
        raise TruncatedSnapshotError(
            f"the snapshot is truncated: {n} of {expected} bytes of state are there"
        )
    if n > expected:
        raise DamagedSnapshotError(
            f"the snapshot is damaged: {n - expected} bytes follow its {expected} bytes of state"
        )


def _read_layout(data: bytes) -> Layout:
    fields = _LAYOUT.unpack_from(data, _START.size)
    architecture, digest, kv_type, *rest = fields
    try:
        return Layout(_text(architecture), digest, _text(kv_type), *rest)
    except UnicodeDecodeError as error:
        raise DamagedSnapshotError("the snapshot is damaged: its names are no text") from error


def _header_bytes(header: SnapshotHeader, n_blob: int) -> bytes:
    """Everything before the checksum."""
    where = _RANGE.pack(
        header.start_tokens,
        header.stop_tokens,
        header.start_positions,
        header.stop_positions,
        header.start_identity,
        header.stop_identity,
        n_blob,
    )
    return _START.pack(MAGIC, HEADER_VERSION) + _layout_bytes(header.layout) + where


def _layout_bytes(layout: Layout) -> bytes:
    return _LAYOUT.pack(
        _name(layout.architecture, 48),
        layout.model_digest,
        _name(layout.kv_type, 8),
        layout.flash_attention,
        layout.kv_rotation,
        layout.n_layer,
        layout.n_embd_k,
        layout.n_embd_v,
        layout.rope_type,
        layout.rope_freq_base,
        layout.rope_freq_scale,
    )


def _name(text: str, size: int) -> bytes:
    encoded = text.encode()
    if len(encoded) > size:
        raise ValueError(f"the name {text!r} is longer than the {size} bytes a snapshot keeps")
    return encoded


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode()


def _checksum(header: bytes, blob: NDArray[np.uint8]) -> int:
    return crc32c.crc32c(blob.data, crc32c.crc32c(header))
