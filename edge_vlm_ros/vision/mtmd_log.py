"""Log lines of llama.cpp's multimodal library: passed on to logging, and kept for errors."""

from __future__ import annotations

import logging
import threading
from collections import deque

import llama_cpp.llama_cpp as llama
from llama_cpp import mtmd_cpp

_LEVELS = {3: logging.WARNING, 4: logging.ERROR}
_logger = logging.getLogger("edge_vlm_ros.llama_cpp")
_errors = threading.local()
_install_lock = threading.Lock()
_installed = False


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _receive(level: int, text: bytes, _user_data: object) -> None:
    line = text.decode("utf-8", "replace").strip()
    if not line:
        return
    severity = _LEVELS.get(level, logging.DEBUG)
    if severity == logging.ERROR:
        _kept().append(line)
    _logger.log(severity, line)


def _kept() -> deque[str]:
    if not hasattr(_errors, "lines"):
        _errors.lines = deque(maxlen=4)
    lines: deque[str] = _errors.lines
    return lines


def install() -> None:
    """Receive the library's log from now on. Calling it again changes nothing."""
    global _installed
    with _install_lock:
        if not _installed:
            mtmd_cpp.mtmd_helper_log_set(_receive, None)
            _installed = True


def recent_errors() -> str:
    """The last errors logged on this thread, for an error message; then forgotten."""
    lines = _kept()
    text = "; ".join(lines) or "it gave no reason"
    lines.clear()
    return text
