"""Cores of an engine's threads."""

from __future__ import annotations

import os
import threading

import pytest

from edge_vlm_ros.engines.affinity import pin_thread
from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.model import LlamaModel

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core only")
def test_the_calling_thread_only() -> None:
    seen: list[set[int]] = []

    def pinned() -> None:
        pin_thread([])
        seen.append(os.sched_getaffinity(0))
        pin_thread(CORES[-1:])
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    assert seen == [set(CORES), set(CORES[-1:])]
    assert os.sched_getaffinity(0) == set(CORES)


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core only")
def test_native_worker_threads_inherit_it(model: LlamaModel) -> None:
    context = LlamaContext(model, n_ctx=256, n_seq_max=2, n_batch=64, kv_type="q8_0", n_threads=2)
    known = set(os.listdir("/proc/self/task"))
    workers: dict[int, set[int]] = {}
    done = threading.Event()

    def compute() -> None:
        known.add(str(threading.get_native_id()))
        pin_thread(CORES[-1:])
        for position in range(256):
            context.decode_tokens([5], [position], [0], [False])
            if workers:
                break
        done.set()

    thread = threading.Thread(target=compute)
    thread.start()
    while not done.is_set():
        for task in set(os.listdir("/proc/self/task")) - known:
            try:
                workers[int(task)] = os.sched_getaffinity(int(task))
            except ProcessLookupError:
                pass  # it has ended
    thread.join()
    context.close()
    assert workers, "no worker thread was seen"
    assert set(map(frozenset, workers.values())) == {frozenset(CORES[-1:])}
