"""Rockchip's RKNNLite: imported where it exists, and its failures put into sentences.

RKNNLite never raises: it prints, and returns -1 or None. It is a library of aarch64 boards.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import EncoderError

ROOT = Path("/")
_LIBRARY = "usr/lib/librknnrt.so"  # RKNNLite looks nowhere else
_DRIVER = "dev/dri/renderD129"
_BOARD = "proc/device-tree/compatible"
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_LOGGER = "acuityLogger"  # RKNNLite's

_BY_CODE = {
    "DEVICE_UNAVAILABLE": "the NPU does not answer; it needs the vendor's kernel with its rknpu "
    "driver 0.9.6 or newer (`sudo cat /sys/kernel/debug/rknpu/version`), and the driver of "
    "mainline Linux will not do",
    "MALLOC_FAIL": "there is not enough memory for this model; close other programs or use fewer "
    "contexts",
    "MODEL_INVALID": "the file is damaged, or was converted by a newer rknn-toolkit2 than "
    "/usr/lib/librknnrt.so can read; update that library or convert the file again",
    "INCOMPATILE_OPTIMIZATION_LEVEL_VERSION": "/usr/lib/librknnrt.so is too old for this file; "
    "update that library or convert the file again",
    "INCOMPATILE_PRE_COMPILE_MODEL": "/usr/lib/librknnrt.so cannot read a file of this version; "
    "update that library or convert the file again",
    "TIMEOUT": "the NPU did not finish in time; look for rknpu in `sudo dmesg`, and start the "
    "board again if it stays so",
}
_OTHER_SOC = ("TARGET_PLATFORM_UNMATCH", "DEVICE_UNMATCH")
_CODES = {-1: "FAIL", -2: "TIMEOUT", -3: "DEVICE_UNAVAILABLE", -4: "MALLOC_FAIL"} | {
    -5: "PARAM_INVALID",
    -6: "MODEL_INVALID",
    -7: "CTX_INVALID",
    -8: "INPUT_INVALID",
    -9: "OUTPUT_INVALID",
    -10: "DEVICE_UNMATCH",
    -13: "TARGET_PLATFORM_UNMATCH",
}


def rknnlite_class() -> Any:
    """RKNNLite's one class, with Python's logging as it was before.

    Raises EncoderError where it cannot be: on another machine, or when it is not installed.
    """
    if platform.machine() != "aarch64":
        raise EncoderError(
            f"this machine is {platform.machine()}, and the rknn encoder runs on Rockchip boards "
            "(aarch64) only; use another backend here"
        )
    with logging_levels_kept():
        try:
            from rknnlite.api import RKNNLite
        except ImportError as error:
            raise EncoderError(
                f"RKNNLite cannot be imported ({error}); `pip install rknn-toolkit-lite2`, for "
                "which there are packages for Python 3.8 to 3.12"
            ) from error
    return RKNNLite


@contextmanager
def logging_levels_kept() -> Iterator[None]:
    """Undo what RKNNLite does to the names of logging's levels in the whole process: afterwards
    ``setLevel("DEBUG")`` would fail."""
    by_name, by_level = dict(logging._nameToLevel), dict(logging._levelToName)
    try:
        yield
    finally:
        _restore(logging._nameToLevel, by_name)
        _restore(logging._levelToName, by_level)


@contextmanager
def errors_said() -> Iterator[list[str]]:
    """Collects what RKNNLite logs as errors on this thread; it says there why it failed."""
    said: list[str] = []
    handler = _Collector(said, threading.get_ident())
    logger = logging.getLogger(_LOGGER)
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def code_text(code: int) -> str:
    """A return code of the NPU runtime as its interface calls it."""
    return f"RKNN_ERR_{_CODES[code]}" if code in _CODES else f"error {code}"


def advice(said: str) -> str:
    """What to do about an error code named in a text; "" if there is nothing more to say."""
    found = re.search(r"RKNN_ERR_(\w+)", said)
    return _BY_CODE.get(found[1], "") if found else ""


def why_not_started(said: list[str], model_platforms: list[str]) -> str:
    """A sentence about why RKNNLite could not start a model here, and what to do.

    Args:
        said: what it logged, see ``errors_said``.
        model_platforms: SoCs that the model file was converted for, [] if unknown.
    """
    board = _board()
    code = re.search(r"RKNN_ERR_(\w+)", "\n".join(said))
    if code and code[1] in _OTHER_SOC:
        made_for = " or ".join(model_platforms) or "another SoC"
        return (
            f"the file was converted for {made_for}, and this board is {board or 'unknown'} "
            f"(RKNN_ERR_{code[1]}); convert it for this SoC: "
            "`python -m tools.convert_encoder rknn --target`"
        )
    if code and code[1] in _BY_CODE and code[1] != "DEVICE_UNAVAILABLE":
        return f"{_BY_CODE[code[1]]} (RKNN_ERR_{code[1]})"
    return (
        _missing(board)
        or (f"{_BY_CODE[code[1]]} (RKNN_ERR_{code[1]})" if code and code[1] in _BY_CODE else "")
        or _unexplained(_last_line(said))
    )


def _unexplained(reason: str) -> str:
    if reason.startswith("OSError") and _LIBRARY in reason:
        return f"{reason}; put the library of the rknn-toolkit2 release for aarch64 there"
    return f"{reason}; look for rknpu in `sudo dmesg`"


def _missing(board: str) -> str:
    """What this system lacks of an NPU, if anything: the first thing to do."""
    container = any((ROOT / mark).exists() for mark in _CONTAINER_MARKS)
    if not board:
        if container:
            return (
                "this container does not show which board it is on; start it with "
                f"`-v /{_BOARD}:/{_BOARD} {_mounts()}`"
            )
        return f"this is not a Rockchip board (/{_BOARD} does not name one); use another backend"
    if not (ROOT / _LIBRARY).exists():
        if container:
            return f"the container lacks /{_LIBRARY}; start it with `{_mounts()}`"
        return (
            f"there is no /{_LIBRARY}; take librknnrt.so of the rknn-toolkit2 release (folder "
            "rknpu2/runtime/Linux/librknn_api/aarch64) and `sudo cp librknnrt.so /usr/lib/`, no "
            "other folder will do"
        )
    driver = ROOT / _DRIVER
    if not driver.exists():
        if container:
            return f"the container lacks /{_DRIVER}; start it with `{_mounts()}`"
        return (
            f"there is no /{_DRIVER}: the kernel has no rknpu driver; use the board vendor's "
            "kernel (5.10 or 6.1), mainline Linux will not do"
        )
    try:
        os.close(os.open(driver, os.O_RDWR))
    except PermissionError:
        return (
            f"no permission to use /{_DRIVER}; `sudo usermod -aG render $USER`, then log in again "
            "(in a container: --group-add with the number of the host's group render)"
        )
    except OSError as error:
        return f"/{_DRIVER} cannot be opened ({error.strerror}); look for rknpu in `sudo dmesg`"
    return ""


def _mounts() -> str:
    return f"--device /{_DRIVER} -v /{_LIBRARY}:/{_LIBRARY}"


def _board() -> str:
    """The SoC that the kernel names, e.g. "rk3588"; "" if it is not Rockchip's."""
    try:
        names = (ROOT / _BOARD).read_bytes().decode("ascii", "replace")
    except OSError:
        return ""
    found = re.findall(r"rockchip,(r[kv]\w+)", names)
    return found[-1] if found else ""  # the most general name comes last


def _last_line(said: list[str]) -> str:
    """The end of a traceback says what was wrong."""
    lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "RKNNLite does not say why"


def _restore(names: dict[Any, Any], kept: dict[Any, Any]) -> None:
    """Never empty in between: other threads log."""
    names.update(kept)
    for name in set(names) - set(kept):
        del names[name]


class _Collector(logging.Handler):
    def __init__(self, said: list[str], thread: int) -> None:
        super().__init__(logging.ERROR)
        self._said, self._thread = said, thread

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._said.append(record.getMessage())
