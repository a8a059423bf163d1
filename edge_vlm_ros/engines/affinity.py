"""Which cores a thread runs on."""

from __future__ import annotations

import os
from collections.abc import Iterable


def pin_thread(cpus: Iterable[int]) -> None:
    """Keep the calling thread, and the threads it starts from now on, to these cores.

    llama.cpp starts its worker threads for each computation from the thread that calls it, so an
    engine's owner thread calls this before its first decode. No cores: nothing is changed.
    """
    cores = frozenset(cpus)
    if cores:
        os.sched_setaffinity(0, cores)
