"""The part of ggml's C interface that llama_cpp does not bind: devices, RPC, the abort callback."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DeviceError

ABORT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)

_ADDRESS = ctypes.c_void_p
_SIZE_POINTER = ctypes.POINTER(ctypes.c_size_t)
_BASE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_name": (ctypes.c_char_p, [_ADDRESS]),
    "ggml_backend_dev_description": (ctypes.c_char_p, [_ADDRESS]),
    "ggml_backend_dev_type": (ctypes.c_int, [_ADDRESS]),
    "ggml_backend_dev_memory": (None, [_ADDRESS, _SIZE_POINTER, _SIZE_POINTER]),
    "ggml_backend_reg_dev_count": (ctypes.c_size_t, [_ADDRESS]),
    "ggml_backend_reg_dev_get": (_ADDRESS, [_ADDRESS, ctypes.c_size_t]),
    "ggml_backend_free": (None, [_ADDRESS]),
    "ggml_set_abort_callback": (_ADDRESS, [ABORT_CALLBACK]),
}
_CORE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_count": (ctypes.c_size_t, []),
    "ggml_backend_dev_get": (_ADDRESS, [ctypes.c_size_t]),
    "ggml_backend_dev_by_type": (_ADDRESS, [ctypes.c_int]),
}
_RPC: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_rpc_add_server": (_ADDRESS, [ctypes.c_char_p]),
    "ggml_backend_rpc_init": (_ADDRESS, [ctypes.c_char_p, ctypes.c_uint32]),
    "ggml_backend_rpc_start_server": (
        None,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, _ADDRESS],
    ),
}

# enum ggml_backend_dev_type
CPU_TYPE = 0
_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator", 4: "meta"}


@dataclass(frozen=True)
class DeviceInfo:
    """A device of ggml. ``kind`` is cpu, gpu, igpu or accelerator; memory in bytes."""

    name: str
    description: str
    kind: str
    memory_free: int
    memory_total: int


def library_directory() -> Path:
    """Where llama_cpp takes its native libraries from."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")
    if override is not None:
        return Path(override)
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        raise DeviceError("llama-cpp-python is not installed")
    return Path(package.origin).parent / "lib"


@functools.cache
def base() -> ctypes.CDLL:
    return _load("libggml-base.so.0", _BASE)


@functools.cache
def core() -> ctypes.CDLL:
    return _load("libggml.so.0", _CORE)


@functools.cache
def rpc() -> ctypes.CDLL:
    return _load("libggml-rpc.so.0", _RPC)


def local_devices() -> tuple[int, ...]:
    """Handles of all devices in this process."""
    library = core()
    return tuple(
        library.ggml_backend_dev_get(index) for index in range(library.ggml_backend_dev_count())
    )


def name_of(device: int) -> str:
    return str(base().ggml_backend_dev_name(device).decode("utf-8", "replace"))


def describe(device: int) -> DeviceInfo:
    """For a device of an RPC server this asks the server."""
    library = base()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    library.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return DeviceInfo(
        name=name_of(device),
        description=library.ggml_backend_dev_description(device).decode("utf-8", "replace"),
        kind=_KINDS.get(library.ggml_backend_dev_type(device), "unknown"),
        memory_free=free.value,
        memory_total=total.value,
    )


def address_array(handles: Sequence[int | None]) -> ctypes.Array[ctypes.c_void_p]:
    """A C array of pointers; keep it as long as native code may read it."""
    return (ctypes.c_void_p * len(handles))(*handles)


def _load(name: str, functions: dict[str, tuple[Any, list[Any]]]) -> ctypes.CDLL:
    # Exactly these names: the wheel also has lib*.so and lib*.so.<version>, which are copies with
    # state of their own that libllama does not use.
    path = library_directory() / name
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceError(
            f"cannot load {path}: {error}. llama-cpp-python must be built from source with "
            "-DGGML_RPC=ON, as `make setup` does"
        ) from error
    for function, (result, arguments) in functions.items():
        bound = getattr(library, function)
        bound.restype, bound.argtypes = result, arguments
    return library
