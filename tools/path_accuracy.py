"""Held-out items of the demo model answered over every path between two engines.

    python -m tools.path_accuracy [--items 100]

Prints for each path how many answers are right, and how many have the token ids of the local
path's. The second engine is a process of its own on this computer (llama.cpp's RPC backend).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edge_vlm_ros.demo.questions import Item, make_item
from edge_vlm_ros.demo.render import SceneRenderer
from edge_vlm_ros.demo.texture import TRAINED_SIZE
from edge_vlm_ros.history import Version
from edge_vlm_ros.runtime import (
    AnswerMetrics,
    AnswerResult,
    AskOptions,
    EngineConfig,
    HistoryConfig,
    PlacementConfig,
    PlanningConfig,
    Runtime,
    RuntimeConfig,
    StreamConfig,
    VersionBinding,
    load_profile,
)
from tools.reference_loop import load_heldout

ROOT = Path(__file__).resolve().parents[1]
STREAMS = ("table", "shelf")
"""Each answers its part of the items, at the same time: so both engines have work."""
PATIENCE_S = 120.0
PATHS = (
    "local",
    "import cpu -> far",
    "import far -> cpu",
    "delta import cpu -> far",
    "replay",
    "partial replay",
    "handoff cpu -> far",
    "handoff far -> cpu",
)
_IN_PART = ("delta import cpu -> far", "partial replay")


class WrongPathError(AssertionError):
    """An answer came over another path than the one that was forced."""


@dataclass(frozen=True)
class PathOutcome:
    """One item answered over one path. ``same_tokens``: with the token ids of the local path."""

    path: str
    right: bool
    same_tokens: bool


def path_config() -> RuntimeConfig:
    """Engines ``cpu`` and ``far``. No snapshot is kept in host memory, so that every import moves
    what the other engine computed."""
    engines = (
        EngineConfig(name="cpu", n_threads=1),
        EngineConfig(name="far", device="rpc", n_threads=1),
    )
    return RuntimeConfig(
        load_profile(ROOT / "config" / "models" / "demo.yaml"),
        tuple(
            StreamConfig(
                stream, HistoryConfig(), max_pending_frames=64, ingest_engine=engines[0].name
            )
            for stream in STREAMS
        ),
        engines,
        placement=PlacementConfig(snapshot_entries=0, snapshot_bytes=0),
        planning=PlanningConfig(policy=f"batched:{engines[0].name}", calibration="never"),
    )


class PathRun:
    """Answers items over all paths on one stream of an active runtime made from ``path_config``."""

    def __init__(self, runtime: Runtime, stream: str) -> None:
        self._runtime = runtime
        self._stream = stream

    def outcomes(self, item: Item, seed: int) -> Iterator[PathOutcome]:
        """One outcome for each path that the item allows: a single frame cannot be moved in part.

        Raises WrongPathError.
        """
        self._show(item, seed)
        local = self._ask(item, AskOptions(engine="cpu", path="local"))
        _check("local", local, lambda m: m.path == "local" and m.engine == "cpu")
        yield _outcome("local", item, local, local)
        for path, result in self._moved(item, local):
            yield _outcome(path, item, result, local)

    def _moved(self, item: Item, local: AnswerResult) -> Iterator[tuple[str, AnswerResult]]:
        all_of_it = local.context.tokens
        yield self._over(item, "replay", lambda m: m.replayed_tokens == all_of_it)
        # far has computed it all by itself now
        self._runtime.evict(self._stream, "cpu")
        yield self._over(item, "import far -> cpu", lambda m: m.imported_tokens == all_of_it)
        self._runtime.evict(self._stream, "far")
        yield self._over(item, "import cpu -> far", lambda m: m.imported_tokens == all_of_it)
        for path in ("handoff cpu -> far", "handoff far -> cpu"):
            yield self._over(item, path, lambda m: m.path == "local" and m.moved_bytes > 0)
        part = _half(local)
        if part is None:
            return
        for path in _IN_PART:
            self._runtime.evict(self._stream, "far")
            self._hold(part)
            yield self._over(item, path, _in_part)

    def _over(
        self, item: Item, path: str, is_right: Callable[[AnswerMetrics], bool]
    ) -> tuple[str, AnswerResult]:
        options = _OPTIONS[path]
        result = self._ask(item, options)
        prefill_engine = options.prefill_engine or options.engine
        forced = (options.path or "local", prefill_engine, options.engine)
        _check(
            path,
            result,
            lambda m: (m.path, m.prefill_engine, m.engine) == forced and is_right(m),
        )
        return path, result

    def _show(self, item: Item, seed: int) -> None:
        """Give the item's frames and committed turns to the runtime, and nothing else."""
        self._runtime.reset(self._stream)
        renderer = SceneRenderer(item.scene, seed, width=TRAINED_SIZE, height=TRAINED_SIZE)
        for k in range(item.scene.n_frames):
            self._runtime.add_frame(self._stream, renderer.frame(k), k)
            for turn in (t for t in item.commits if t.after_frame == k):
                options = AskOptions(engine="cpu", commit=True)
                self._runtime.ask(self._stream, turn.question, options).result(PATIENCE_S)

    def _ask(self, item: Item, options: AskOptions) -> AnswerResult:
        result = self._runtime.ask(self._stream, item.question.text, options).result(PATIENCE_S)
        if result.error:
            raise RuntimeError(result.error)
        return result

    def _hold(self, version: Version) -> None:
        """Let ``far`` have a version by asking a question about it there."""
        binding = VersionBinding(version.epoch, version.n)
        options = AskOptions(binding=binding, engine="far", path="replay", max_tokens=1)
        self._runtime.ask(self._stream, "What is on the table?", options).result(PATIENCE_S)


_OPTIONS = {
    "replay": AskOptions(engine="far", path="replay"),
    "import far -> cpu": AskOptions(engine="cpu", path="import"),
    "import cpu -> far": AskOptions(engine="far", path="import"),
    "handoff cpu -> far": AskOptions(engine="far", prefill_engine="cpu"),
    "handoff far -> cpu": AskOptions(engine="cpu", prefill_engine="far"),
    "delta import cpu -> far": AskOptions(engine="far", path="import"),
    "partial replay": AskOptions(engine="far", path="replay"),
}


def run(entries: Sequence[dict[str, int]]) -> list[PathOutcome]:
    """Answer items of models/demo/heldout.json over all paths."""
    runtime = Runtime(path_config())
    runtime.load()
    try:
        runtime.activate()

        def part(k: int) -> list[PathOutcome]:
            paths = PathRun(runtime, STREAMS[k])
            found: list[PathOutcome] = []
            for entry in entries[k :: len(STREAMS)]:
                item = make_item(entry["seed"], entry["n_frames"], entry["n_commit"])
                found += paths.outcomes(item, entry["seed"])
            return found

        with ThreadPoolExecutor(len(STREAMS)) as pool:
            parts = list(pool.map(part, range(len(STREAMS))))
    finally:
        runtime.close()
    return [outcome for found in parts for outcome in found]


def table(outcomes: Sequence[PathOutcome]) -> str:
    """One line for each path: right answers and equal token ids, of how many."""
    lines = [f"{'path':<26}{'right':>8}{'as local':>10}{'of':>6}"]
    for path in PATHS:
        of_path = [o for o in outcomes if o.path == path]
        right = sum(o.right for o in of_path)
        same = sum(o.same_tokens for o in of_path)
        lines.append(f"{path:<26}{right:>8}{same:>10}{len(of_path):>6}")
    return "\n".join(lines)


def _outcome(path: str, item: Item, result: AnswerResult, local: AnswerResult) -> PathOutcome:
    return PathOutcome(path, result.text == item.answer, result.token_ids == local.token_ids)


def _half(local: AnswerResult) -> Version | None:
    """A version with about half of the history; None of one with a single frame."""
    version = local.context.version
    # Version 1 is the opening of the prompt; the first frame follows it.
    if version.n <= 2:
        return None
    return Version(version.stream, version.epoch, max(2, version.n // 2))


def _in_part(metrics: AnswerMetrics) -> bool:
    """Whether some of the history was there and the rest came."""
    came = metrics.imported_tokens + metrics.replayed_tokens
    return metrics.reused_tokens > 0 and metrics.reused_tokens + came == metrics.history_tokens


def _check(path: str, result: AnswerResult, is_right: Callable[[AnswerMetrics], bool]) -> None:
    if not is_right(result.metrics):
        raise WrongPathError(f"not {path}: {result.question!r} was answered by {result.metrics}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--items", type=int, default=100)
    args = parser.parse_args()
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    entries = load_heldout(ROOT / "models" / "demo" / "heldout.json")[: args.items]
    print(table(run(entries)))


if __name__ == "__main__":
    main()
