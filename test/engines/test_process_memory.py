"""Memory of processes, shared pages counted once."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.engines.memory import process_memory

MIB = 1 << 20


def test_own_memory_counts_what_is_touched() -> None:
    before = process_memory()
    block = mmap.mmap(-1, 64 * MIB)
    for offset in range(0, len(block), 4096):
        block[offset] = 1
    after = process_memory()
    block.close()
    assert after.rss_bytes - before.rss_bytes > 60 * MIB
    assert after.pss_bytes - before.pss_bytes > 60 * MIB
    assert 0 < after.pss_bytes <= after.rss_bytes


def test_a_file_mapped_by_two_processes_counts_half_in_each(tmp_path: Path) -> None:
    """As the weights of one model do."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(MIB) * 64)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert sum(mapped[::4096]) > 0
    alone = process_memory()
    code = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, "
        "prot=mmap.PROT_READ); sum(m[::4096]); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        other.stdout.readline()
        shared = process_memory()
        theirs = process_memory(other.pid)
        other.stdin.close()
    mapped.close()
    assert alone.pss_bytes - shared.pss_bytes > 28 * MIB
    assert theirs.rss_bytes > 64 * MIB
    assert theirs.rss_bytes - theirs.pss_bytes > 28 * MIB


def test_no_such_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(EngineError, match=f"memory of process {process.pid} cannot be read"):
        process_memory(process.pid)
