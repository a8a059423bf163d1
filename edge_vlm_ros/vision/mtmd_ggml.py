"""The part of ggml's C interface that the ``mtmd`` encoder needs: devices by their names."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from .errors import EncoderError

_ADDRESS = ctypes.c_void_p
_NUMBERED = re.compile(r"(vulkan|cuda):(\d+)\Z")
_GGML_PREFIX = {"vulkan": "Vulkan", "cuda": "CUDA"}
_BASE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_name": (ctypes.c_char_p, [_ADDRESS]),
}
_CORE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_count": (ctypes.c_size_t, []),
    "ggml_backend_dev_get": (_ADDRESS, [ctypes.c_size_t]),
}


def find_device(text: str) -> int | None:
    """The ggml device that ``text`` names, as for engines: cpu (None), vulkan:<n>, cuda:<n> or
    ggml's own name. Raises EncoderError when there is none."""
    if text == "cpu":
        return None
    numbered = _NUMBERED.match(text)
    wanted = f"{_GGML_PREFIX[numbered[1]]}{int(numbered[2])}" if numbered else text
    names = []
    for index in range(_core().ggml_backend_dev_count()):
        handle = int(_core().ggml_backend_dev_get(index))
        names.append(_base().ggml_backend_dev_name(handle).decode("utf-8", "replace"))
        if names[-1] == wanted:
            return None if wanted == "CPU" else handle
    raise EncoderError(
        f"there is no device {text!r} for the encoder: llama.cpp has {', '.join(names)} here. "
        "Another backend needs a llama-cpp-python that was built with it"
    )


@functools.cache
def _base() -> ctypes.CDLL:
    return _load("libggml-base.so.0", _BASE)


@functools.cache
def _core() -> ctypes.CDLL:
    return _load("libggml.so.0", _CORE)


def _load(name: str, functions: dict[str, tuple[Any, list[Any]]]) -> ctypes.CDLL:
    # Exactly these names: lib*.so and lib*.so.<version> are copies that libllama does not use.
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        raise EncoderError("llama-cpp-python is not installed; `make setup` builds it")
    default = Path(package.origin).parent / "lib"
    path = Path(os.environ.get("LLAMA_CPP_LIB_PATH", default)) / name
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise EncoderError(f"cannot load {path}: {error}; `make setup` builds it") from error
    for function, (result, arguments) in functions.items():
        bound = getattr(library, function)
        bound.restype, bound.argtypes = result, arguments
    return library
