"""Questions to two engines on the CPU, and the way an answer took."""

from __future__ import annotations

from helpers import (
    PATIENCE_S,
)

from edge_vlm_ros.runtime import (
    AnswerResult,
    AskOptions,
    EngineConfig,
    Runtime,
)

QUESTION = "Describe the scene."
POLICIES = ("sdep", "single:cpu", "batched:second", "idle_first", "isolated", "round_robin")
TWO = (EngineConfig(name="cpu", n_threads=1), EngineConfig(name="second", n_threads=1))


def ask(
    runtime: Runtime, stream: str = "table", text: str = QUESTION, **options: object
) -> AnswerResult:
    result = runtime.ask(stream, text, AskOptions(**options)).result(PATIENCE_S)  # type: ignore[arg-type]
    assert not result.error
    return result


def path(result: AnswerResult) -> tuple[str, str, str]:
    return result.metrics.prefill_engine, result.metrics.engine, result.metrics.path
