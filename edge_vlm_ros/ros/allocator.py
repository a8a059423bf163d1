"""glibc's allocator in a process of many threads that come and go.

Every thread that allocates gets an arena of its own, which keeps what was freed. Configured and
cleaned up fifty times, the node grew from 188 to 471 MB; with two arenas, trimmed, to 212 MB.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 2


def limit_arenas() -> None:
    """Share a few arenas between all threads. Call it before threads are started; with another C
    library it changes nothing."""
    _call("mallopt", _M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Return freed memory to the system."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return
    function(*arguments)
