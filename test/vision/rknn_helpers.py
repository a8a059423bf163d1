"""A stand-in for RKNNLite that fails as told and leaves stale outputs as the real one does."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_vlm_ros.model_profile import EncoderProfile, RknnBackend
from edge_vlm_ros.vision import rknn_library

VERSION = "=====\nRKNN VERSION:\n  API: 2.5.0 (stand-in)\n  DRV: 0.9.8\n====="


class Runtime:
    """What RKNNLite keeps of one context; ``run`` gives the code that RKNNLite drops."""

    def __init__(self, lite: type[Lite]) -> None:
        self._lite = lite

    def run(self, get_frame_id: bool) -> int:
        return self._lite.run_code


class Lite:
    """RKNNLite. The class's attributes say how calls go; ``log`` has the calls made."""

    NPU_CORE_AUTO, NPU_CORE_0, NPU_CORE_1, NPU_CORE_2 = 0, 1, 2, 4
    NPU_CORE_0_1, NPU_CORE_0_1_2, NPU_CORE_ALL = 3, 7, 0xFFFF

    log: list[tuple[Any, ...]] = []
    load_code = init_code = run_code = 0
    init_said = ""
    fails_at: str | None = None  # the call that raises
    gives: Any = "sums"  # or what inference returns
    shape: tuple[int, ...] = (1, 2, 3)
    frozen = False  # outputs stay what they are
    platforms: list[str] = ["RK3588"]

    def __init__(self, verbose: bool = False) -> None:
        break_logging()
        self.rknn_runtime: Runtime | None = None
        self.rknn_data: bytes | None = None
        self._outputs = np.zeros(self.shape, np.float32)
        self._note("make")

    def load_rknn(self, path: str) -> int:
        self._note("load", path)
        self.rknn_data = Path(path).read_bytes()
        return self.load_code

    def init_runtime(self, core_mask: int) -> int:
        self._note("init", core_mask)
        if self.init_said:
            logging.getLogger("acuityLogger").error(
                "Traceback\n  line\nException: %s\n", self.init_said
            )
        self.rknn_runtime = Runtime(type(self))
        return self.init_code

    def inference(self, inputs: list[Any], data_format: list[str]) -> Any:
        self._note("inference", inputs[0].shape, inputs[0].dtype, data_format)
        assert self.rknn_runtime is not None
        code = self.rknn_runtime.run(False)
        if not isinstance(self.gives, str):
            return self.gives
        if code == 0 and not self.frozen:
            total = float(inputs[0].sum())
            self._outputs = total + np.arange(self._outputs.size, dtype=np.float32).reshape(
                self.shape
            )
        return [self._outputs.copy()]

    def get_sdk_version(self) -> str | None:
        return VERSION

    def list_support_target_platform(self, path: str) -> dict[str, list[str]]:
        return {"filled_target_platform": ["x"], "support_target_platform": self.platforms}

    def release(self) -> None:
        self._note("release")

    def _note(self, call: str, *rest: Any) -> None:
        self.log.append((call, *rest))
        if self.fails_at == call:
            raise ValueError(f"no {call} today")


class NoWatchLite(Lite):
    """A version whose runtime object cannot be watched."""

    def init_runtime(self, core_mask: int) -> int:
        code = super().init_runtime(core_mask)
        self._hidden, self.rknn_runtime = self.rknn_runtime, None
        return code

    def inference(self, inputs: list[Any], data_format: list[str]) -> Any:
        self.rknn_runtime = self._hidden
        try:
            return super().inference(inputs, data_format)
        finally:
            self.rknn_runtime = None


def break_logging() -> None:
    """What the real one does when it is imported."""
    logging._nameToLevel.clear()
    logging._nameToLevel.update({"E": 40, "W": 30})
    logging._levelToName.clear()
    logging._levelToName.update({40: "E", 30: "W"})


class _Api(types.ModuleType):
    def __init__(self, lite: type[Lite]) -> None:
        super().__init__("rknnlite.api")
        self._lite = lite

    def __getattr__(self, name: str) -> Any:
        if name != "RKNNLite":
            raise AttributeError(name)
        break_logging()
        return self._lite


def install(
    monkeypatch: pytest.MonkeyPatch, root: Path, base: type[Lite] = Lite, **behaviour: Any
) -> type[Lite]:
    """Make this machine a board with an NPU: its RKNNLite, with ``behaviour`` as attributes, and
    its files under ``root``."""
    lite = type("RKNNLite", (base,), {"log": [], **behaviour})
    package = types.ModuleType("rknnlite")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "rknnlite", package)
    monkeypatch.setitem(sys.modules, "rknnlite.api", _Api(lite))
    monkeypatch.setattr(rknn_library.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(rknn_library, "ROOT", root)
    for name, data in (
        ("proc/device-tree/compatible", b"radxa,rock-5b\0rockchip,rk3588\0"),
        ("usr/lib/librknnrt.so", b""),
        ("dev/dri/renderD129", b""),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return lite


def profile_of(folder: Path, **fields: Any) -> tuple[EncoderProfile, RknnBackend]:
    """A profile of 4x4 pixels, 2 tokens of width 3, and its one backend, whose file is there."""
    file = folder / "encoder.rknn"
    file.write_bytes(b"RKNN and more")
    backend = RknnBackend(type="rknn", file=file, **fields)
    profile = EncoderProfile(backends=(backend,), size=(4, 4), resize="pad", n_tokens=2, n_embd=3)
    return profile, backend
