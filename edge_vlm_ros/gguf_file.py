"""GGUF files without loading the model: single values of the header, and rows of a tensor."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

_MAGIC = b"GGUF"
_LFS_POINTER = b"vers"
_LENGTH = struct.Struct("<Q")
_ERRORS = (OSError, ValueError, IndexError, KeyError, OverflowError, struct.error)
"""What a file that is damaged or too short makes the library raise."""


class GgufError(ValueError):
    """A file that is no complete GGUF file, or lacks what is asked for. Says what to do."""


class GgufFile:
    """The header and the tensors' places; values of tensors are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        """Read the header and compare the file's length with it.

        Raises GgufError for a file that is no GGUF file, is damaged or ends too early.
        """
        self.path = path
        _check_magic(path)
        try:
            self._reader = _Reader(path)
        except _ERRORS as error:
            raise GgufError(
                f"{path} is not a complete GGUF file ({error}): it is damaged or the download was "
                "cut off; fetch it again"
            ) from error

    @property
    def n_tensors(self) -> int:
        return len(self._reader.tensors)

    @property
    def architecture(self) -> str:
        """For example ``qwen2``, ``llama``; ``clip`` of a projector file."""
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """A value as text; empty when it is missing or something else."""
        field = self._reader.get_field(key)
        if field is None or field.types != [gguf.GGUFValueType.STRING]:
            return ""
        return bytes(field.parts[-1]).decode("utf-8", "replace")

    def number(self, key: str) -> int | None:
        """A whole number, or None when it is missing or something else."""
        value = self._scalar(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, key: str) -> bool:
        """A truth value; False when it is missing or something else."""
        return self._scalar(key) is True

    def of_architecture(self, key: str) -> int | None:
        """A whole number whose key begins with the architecture, e.g. ``context_length``."""
        return self.number(f"{self.architecture}.{key}")

    def rows(self, name: str, indices: Sequence[int]) -> npt.NDArray[np.float32]:
        """Rows of a matrix, float32 [len(indices), columns]. Equal to what llama.cpp's CPU backend
        looks up, bit for bit.

        Raises GgufError when there is no such tensor or row, or its type cannot be read.
        """
        tensor = next((tensor for tensor in self._reader.tensors if tensor.name == name), None)
        if tensor is None:
            raise GgufError(f"{self.path} has no tensor {name}; it must be in the first file")
        n_columns, n_rows = (int(size) for size in tensor.shape)
        if any(not 0 <= index < n_rows for index in indices):
            raise GgufError(f"{name} of {self.path} has {n_rows} rows, too few for {indices}")
        if not indices:
            return np.empty((0, n_columns), np.float32)
        try:
            rows = gguf.quants.dequantize(tensor.data[list(indices)], tensor.tensor_type)
        except NotImplementedError as error:
            raise GgufError(f"{name} of {self.path} cannot be read: {error}") from error
        return np.asarray(rows, np.float32)

    def _scalar(self, key: str) -> object:
        field = self._reader.get_field(key)
        if field is None or len(field.types) != 1 or field.types[0] == gguf.GGUFValueType.STRING:
            return None
        value: object = field.contents()
        return value


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """Passes over arrays: the library makes an object of each element, which takes seconds for the
    words of a vocabulary. setup.py pins the version of the library whose method this replaces."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], Any, Any]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], Any, Any] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        element = gguf.GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        end = orig_offs + 12
        if element == gguf.GGUFValueType.STRING:
            for _ in range(count):
                end += _LENGTH.size + _LENGTH.unpack_from(self.data, end)[0]
        else:
            # Arrays of arrays have no entry here; llama.cpp refuses them too.
            end += count * np.dtype(self.gguf_scalar_to_np[element]).itemsize
        return end - orig_offs, [], [], [gguf.GGUFValueType.ARRAY, element]


def _check_magic(path: Path) -> None:
    """Say what else it may be; the library only says that it is something else."""
    try:
        with open(path, "rb") as stream:
            magic = stream.read(len(_MAGIC))
    except FileNotFoundError as error:
        raise GgufError(f"there is no file {path}; put it there") from error
    except OSError as error:
        raise GgufError(f"cannot read {path}: {error}") from error
    if magic == _MAGIC:
        return
    hint = (
        "it looks like a Git LFS pointer: fetch the real file with `git lfs pull`"
        if magic == _LFS_POINTER
        else "is it a web page or another format that was saved under this name?"
    )
    raise GgufError(f"{path} is no GGUF file; {hint}")
