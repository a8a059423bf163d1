"""How much memory a process takes."""

from __future__ import annotations

from typing import NamedTuple

import psutil

from .errors import EngineError


class ProcessMemory(NamedTuple):
    """RSS counts all pages that are mapped; PSS shares a page among the processes that map it, as
    several engines do with the weights of one file."""

    rss_bytes: int
    pss_bytes: int


def process_memory(pid: int | None = None) -> ProcessMemory:
    """Memory of a process, of this one by default: about a millisecond of work for the kernel.

    Raises EngineError when there is no such process.
    """
    try:
        memory = psutil.Process(pid).memory_full_info()
    except psutil.Error as error:
        raise EngineError(f"the memory of process {pid} cannot be read: {error}") from error
    return ProcessMemory(memory.rss, memory.pss)
