"""llama.cpp's log lines: passed on to Python's logging, and kept for error messages."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque

import llama_cpp.llama_cpp as llama

_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUATION = 5
# The cache holds several sequences, each shorter than the trained context: that is checked here.
_EXPECTED_WARNING = "possible training context overflow"
_logger = logging.getLogger("edge_vlm_ros.llama_cpp")
_recent: deque[tuple[str, str]] = deque(maxlen=40)
"""Names of threads, and the warnings and errors logged on them."""
_install_lock = threading.Lock()
_installed = False


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _receive(level: int, text: bytes, _user_data: object) -> None:
    line = text.decode("utf-8", "replace").rstrip()
    if not line.strip(". "):
        return  # the dots that draw a progress bar
    severity = _LEVELS.get(level, logging.DEBUG)
    if _EXPECTED_WARNING in line:
        severity = logging.DEBUG
    if level == _CONTINUATION:
        _logger.debug(line)
        return
    if severity >= logging.WARNING:
        _recent.append((threading.current_thread().name, line))
    _logger.log(severity, line)


def install() -> None:
    """Receive the native library's log from now on. Calling it again changes nothing."""
    global _installed
    with _install_lock:
        if not _installed:
            llama.llama_log_set(_receive, None)
            _installed = True


def recent_errors() -> str:
    """The last warnings and errors of the native library, for an error message; then forgotten.

    Those of the calling thread, if there are any: other engines have threads of their own.
    """
    entries = list(_recent)
    own = [entry for entry in entries if entry[0] == threading.current_thread().name]
    told = own or entries
    for entry in told:
        with contextlib.suppress(ValueError):  # another thread has taken it
            _recent.remove(entry)
    return "; ".join(line for _, line in told[-4:]) or "llama.cpp gave no reason"
