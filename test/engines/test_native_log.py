"""Whose errors an engine's message tells, when several engines log at once."""

from __future__ import annotations

import threading

from edge_vlm_ros.engines import native_log

ERROR = 4


def log_in_thread(name: str, text: bytes) -> None:
    thread = threading.Thread(target=native_log._receive, args=(ERROR, text, None), name=name)
    thread.start()
    thread.join()


def test_errors_of_other_engines_are_left_to_them() -> None:
    native_log.recent_errors()
    log_in_thread("engine-a", b"a is on fire")
    native_log._receive(ERROR, b"mine is too small", None)
    assert native_log.recent_errors() == "mine is too small"
    # Without any of its own an engine tells what there is: native threads have other names.
    assert native_log.recent_errors() == "a is on fire"
    assert native_log.recent_errors() == "llama.cpp gave no reason"
