"""A torch that can be imported and does nothing.

rknn-toolkit2 imports torch when it starts, for converting PyTorch models. ONNX files are converted
without it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

_VERSION = "2.4.0"  # the newest that the toolkit accepts


class _Anything:
    """Stands for a class: it can be subclassed and made."""

    def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def __call__(self, function: Any) -> Any:  # as a decorator: torch.no_grad()
        return function

    def __enter__(self) -> _Anything:
        return self

    def __exit__(self, *arguments: Any) -> None: ...


class _Module(types.ModuleType):
    """Has whatever is asked of it."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any
        if name[0].isupper() or name in ("no_grad", "inference_mode"):
            made = type(name, (_Anything,), {})
        else:
            made = _Module(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise RuntimeError(f"{self.__name__} is called, but torch is not installed")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] != "torch":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__version__ = _VERSION  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def install() -> None:
    """From now on ``import torch`` finds the stub."""
    sys.meta_path.insert(0, _Finder())
