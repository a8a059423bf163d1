"""What must be true when everybody has stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from edge_vlm_ros.engines.protocol import Origin
from edge_vlm_ros.runtime import Runtime

from .watch import frames_unaccounted

_PATIENCE_S = 60.0


def settle(runtime: Runtime, complain: Callable[[str], None]) -> None:
    """Wait until every frame is published, then deactivate: a frame that stands by is dropped.

    Each stream gets an engine of its own first, because one cannot hold all histories.
    """
    for stream, engine in zip(runtime.stream_names, runtime.config.engines, strict=True):
        runtime.move_ingestion(stream, engine.name)

    def is_settled() -> bool:
        streams = [runtime.stream_status(name) for name in runtime.stream_names]
        return all(s.pending_frames == 0 and s.published == s.registered for s in streams)

    if not _eventually(is_settled):
        states = [runtime.stream_status(name) for name in runtime.stream_names]
        complain(f"frames are still not published after {_PATIENCE_S:.0f} s: {states}")
    runtime.deactivate()


def check_frames(
    runtime: Runtime, sent: Mapping[str, int], complain: Callable[[str], None]
) -> None:
    for stream, n in sent.items():
        status = runtime.stream_status(stream)
        if status.frames_received != n or frames_unaccounted(status) or status.frames_failed:
            complain(f"{n} frames of stream {stream} were sent, they do not add up: {status}")


def check_nothing_is_held(runtime: Runtime, complain: Callable[[str], None]) -> None:
    """Engines hold what the residency table says and nothing else; only what current histories
    need is pinned."""
    coordinator = runtime._loaded()
    trunks = coordinator.trunks
    if not _eventually(lambda: not _cell_differences(runtime)):
        complain(f"cells: {'; '.join(_cell_differences(runtime))}")
    pinned = set()
    for stream in coordinator.streams.values():
        history = stream.history
        shown = {frame.frame_id for frame in history.current.frames(len(history.current))}
        if [epoch.number for epoch in history.epochs] != [history.current.number]:
            complain(f"stream {stream.name} keeps epochs {[e.number for e in history.epochs]}")
        if set(stream._embedded) != shown:
            complain(f"stream {stream.name} keeps embeddings of {set(stream._embedded) ^ shown}")
        pinned |= {embedded.key for embedded in stream._embedded.values()}
    cache = runtime.vision_status().cache
    if cache.pinned_entries != len(pinned):
        complain(f"{cache.pinned_entries} embeddings are pinned, {len(pinned)} are needed")
    reserved = {r.trunk: r.reserved for r in trunks.table if r.reserved}
    if reserved:
        complain(f"trunks are reserved for questions that have ended: {reserved}")


def _cell_differences(runtime: Runtime) -> list[str]:
    table = runtime._loaded().trunks.table
    differences = []
    for engine in runtime.engine_status():
        status = engine.status
        here = list(table.on_engine(status.name))
        tokens = sum(record.cells for record in here)
        # A fork shares its cells while the trunk is there that it was forked from.
        forked = sum(r.tokens_by_origin(0, r.computed.n)[Origin.FORKED] for r in here)
        is_known = tokens - forked <= status.cells_used <= tokens
        if not is_known or (status.cells_reserved, status.trunks) != (0, len(here)):
            differences.append(
                f"engine {status.name} has {status.cells_used} cells used and "
                f"{status.cells_reserved} reserved in {status.trunks} trunks, {len(here)} trunks "
                f"of {tokens} tokens are known"
            )
    return differences


def _eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
