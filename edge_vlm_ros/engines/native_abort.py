"""What becomes of native code that gives up: one engine is lost, not the process.

Where ggml cannot go on (a lost RPC server, a failed assertion, a CUDA error) it calls a callback,
then abort(). The callback here never returns, so the process lives: it tells the guards of what is
lost and keeps the thread for ever. The price:

* The thread never comes back. When it is a thread of the library's own (the RPC client has one per
  server), whoever waits for it, such as an engine's thread in `llama_decode`, waits for ever.
* What the thread worked on is in no defined state, and locks it held stay held. Models, contexts
  and connections of a lost device must be left alone: freeing them would wait for ever too.
* Nothing else is caught: C++ exceptions out of a driver (a lost Vulkan device), signals, memory
  that ran out. They end the process.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from . import ggml
from .errors import NativeAbortError

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

# The sockets of a dying server do not close in one instant.
_CLAIM_WITHIN_S = 2.0

_lock = threading.Lock()
_installed = False
_tags: dict[str, str] = {}
_aborted: dict[str, str] = {}


@dataclass(frozen=True, eq=False)
class _Guard:
    name: str
    tag: str
    thread: int
    on_abort: Callable[[str], None]
    is_lost: Callable[[], bool] | None


_guards: tuple[_Guard, ...] = ()
_told: set[_Guard] = set()
"""Guards that know of their loss. They stay: several threads that work for one may abort."""


def install() -> None:
    """Receive ggml's aborts from now on. Calling it again changes nothing."""
    global _installed
    with _lock:
        if not _installed:
            ggml.base().ggml_set_abort_callback(_receive)
            _installed = True


@contextlib.contextmanager
def guard(
    name: str, on_abort: Callable[[str], None], is_lost: Callable[[], bool] | None = None
) -> Iterator[None]:
    """Survive an abort in the calling thread, or in a native thread that works for it.

    ``name`` is what fails together: an RPC device's endpoint, or else the engine's name. Native
    threads are started by many of them: they are told apart by the thread name, which Linux hands
    down and which this sets. ``is_lost`` tells whether what the thread works with is gone; it is
    asked when a native thread aborts that nobody here has started.

    ``on_abort`` is called once with ggml's message, on the aborting thread: it must do no more than
    hand on the news, and not call native code. The guarded thread never gets any further.
    """
    install()
    guarded = _Guard(name, _tag(name), threading.get_ident(), on_abort, is_lost)
    thread_name = _native_thread_name(guarded.tag)
    _register(guarded)
    try:
        yield
    finally:
        _unregister(guarded)
        _native_thread_name(thread_name)


def run_guarded(
    function: Callable[[], _T], name: str, is_lost: Callable[[], bool] | None = None
) -> _T:
    """Call a function with native code that may never return, in a guarded thread of its own.

    Returns what it returns and raises what it raises; NativeAbortError when the library gives up.
    For ``name`` and ``is_lost`` see guard.
    """
    outcome: queue.SimpleQueue[Callable[[], _T]] = queue.SimpleQueue()

    def aborted(message: str) -> None:
        def report() -> _T:
            raise NativeAbortError(message)

        outcome.put(report)

    def run() -> None:
        with guard(name, aborted, is_lost):
            try:
                result = function()
            except BaseException as error:
                failure = error

                def report() -> _T:
                    raise failure

                outcome.put(report)
            else:
                outcome.put(lambda: result)

    threading.Thread(target=run, name=f"guarded-{name}", daemon=True).start()
    return outcome.get()()


def aborted(name: str) -> str:
    """The first message with which something of this name aborted; empty when nothing did."""
    return _aborted.get(name, "")


# ------------------------------------------------------------------------------ the callback
@ggml.ABORT_CALLBACK  # type: ignore[untyped-decorator]
def _receive(message: bytes) -> None:
    # "<path on the computer that built it>/<file>:<line>: <message>"
    text = re.sub(r"^\S*/", "", " ".join(message.decode("utf-8", "replace").split()))
    lost = _find_lost()
    news = [guarded for guarded in lost if guarded not in _told]
    _told.update(news)
    for guarded in news:
        _aborted.setdefault(guarded.name, text)
        _logger.error("%s is lost: %s", guarded.name, text)
        try:
            guarded.on_abort(text)
        except Exception:
            _logger.exception("the guard of %s failed", guarded.name)
    while lost:
        time.sleep(1e6)
    print(f"llama.cpp aborts this process: {text}", file=sys.stderr, flush=True)


def _find_lost() -> list[_Guard]:
    """The guards that the abort on this thread concerns."""
    thread = threading.get_ident()
    own = [guarded for guarded in _guards if guarded.thread == thread]
    if not own:
        tag = _native_thread_name()
        own = [guarded for guarded in _guards if guarded.tag == tag]
    give_up_at = time.monotonic() + _CLAIM_WITHIN_S
    while True:
        others = [g for g in _guards if g not in own and g.is_lost is not None and g.is_lost()]
        if own or others or time.monotonic() > give_up_at:
            return own + others
        time.sleep(0.05)


# ------------------------------------------------------------------------------ registration
def _register(guarded: _Guard) -> None:
    global _guards
    with _lock:
        _guards = (*_guards, guarded)


def _unregister(guarded: _Guard) -> None:
    global _guards
    with _lock:
        _guards = tuple(other for other in _guards if other is not guarded)


def _tag(name: str) -> str:
    with _lock:
        return _tags.setdefault(name, f"guarded-{len(_tags)}")


def _native_thread_name(new: str = "") -> str:
    """The name that Linux has for the calling thread (15 bytes at most), before it is set anew."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    try:
        old = path.read_text().rstrip("\n")
        if new:
            path.write_text(new)
    except OSError:  # not Linux: only is_lost tells whose native thread it is
        return ""
    return old
