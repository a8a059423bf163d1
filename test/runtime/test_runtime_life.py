"""Configuring, loading, closing: what is wrong is named, and nothing stays behind."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import PATIENCE_S, Start, answered, changes, clip, demo_config, demo_profile, show

from edge_vlm_ros.engines.errors import ContextError, EngineError
from edge_vlm_ros.model_profile import ModelProfile, ProfileError
from edge_vlm_ros.runtime import (
    ConfigError,
    EngineConfig,
    HistoryConfig,
    NotActiveError,
    PlanningConfig,
    QuestionLimits,
    QuestionRejected,
    Runtime,
    RuntimeConfig,
    StreamConfig,
    VisionConfig,
)
from edge_vlm_ros.runtime.sizing import answer_cells
from edge_vlm_ros.vision.errors import EncoderError


def other_profile(part: str, **fields: Any) -> ModelProfile:
    profile = demo_profile()
    changed = getattr(profile, part).model_copy(update=fields)
    return profile.model_copy(update={part: changed})


# The thread of an engine that was lost in an earlier test hangs for ever.
_BEFORE: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def threads_before() -> None:
    _BEFORE.update(threading.enumerate())


def our_threads() -> set[str]:
    names = {thread.name for thread in set(threading.enumerate()) - _BEFORE}
    return {n for n in names if n.startswith(("engine-", "vision-", "coordinator"))}


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (lambda: QuestionLimits(max_pending=0), "at least 1"),
        (lambda: QuestionLimits(default_max_tokens=300, max_answer_tokens=200), "300.*200"),
        (lambda: StreamConfig(""), "name"),
        (lambda: StreamConfig("a", max_fps=-1), "'a'.*max_fps"),
        (lambda: StreamConfig("a", change_threshold=300), "'a'.*300.*255"),
        (lambda: StreamConfig("a", max_pending_frames=0), "'a'.*max_pending_frames"),
        (lambda: StreamConfig("a", pending_policy="oldest"), "'a'.*latest or reject"),  # type: ignore[arg-type]
        (lambda: VisionConfig(n_threads=0), "n_threads.*0"),
        (lambda: VisionConfig(cache_entries=-5), "cache_entries.*-5"),
        (lambda: RuntimeConfig(demo_profile(), ()), "distinct"),
        (lambda: demo_config("a", "a"), "'a', 'a'"),
        (lambda: demo_config(engine=EngineConfig(name="vision")), "'vision'.*another name"),
        (lambda: PlanningConfig(objective="speed"), "objective.*'speed'"),  # type: ignore[arg-type]
        (lambda: PlanningConfig(calibration="maybe"), "calibration.*'maybe'"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_cannot_be(make: Any, numbers: str) -> None:
    with pytest.raises(ConfigError, match=numbers):
        make()


UNLOADABLE = [
    (demo_config(engine=EngineConfig(n_ctx=100)), ConfigError, "n_ctx is 100"),
    (
        demo_config(engine=EngineConfig(n_ctx=2 * 10**9)),
        ContextError,
        "MiB, cpu has .* lower n_ctx",
    ),
    (demo_config(history=HistoryConfig(max_tokens=5000)), ConfigError, "5000.*4096"),
    (demo_config(history=HistoryConfig(max_tokens=100)), ConfigError, "100 tokens has no room"),
    (demo_config(history=HistoryConfig(max_frames=0)), ConfigError, "max_frames"),
    (demo_config(history=HistoryConfig(keep_frames=12)), ConfigError, "keep_frames .12."),
    (
        demo_config(history=HistoryConfig(on_full="explode")),  # type: ignore[arg-type]
        ConfigError,
        "explode",
    ),
    (demo_config(questions=QuestionLimits(max_pending=200)), ContextError, "604.*256"),
    (
        demo_config(profile=other_profile("language", sha256="0" * 64)),
        ProfileError,
        "SHA-256",
    ),
    (
        demo_config(profile=other_profile("language", file=Path("/nowhere/lm.gguf"))),
        ProfileError,
        "/nowhere/lm.gguf",
    ),
    (
        demo_config(
            profile=other_profile(
                "language",
                file=demo_profile().encoder.backends[0].file,
                sha256=demo_profile().encoder.backends[0].sha256,
            )
        ),
        EngineError,
        "cannot load",
    ),
    (
        demo_config(profile=other_profile("language", context_tokens=5000)),
        ConfigError,
        "5000 positions.*4096.*context_tokens",
    ),
    (
        demo_config(profile=other_profile("template", stop_tokens=("two tokens",))),
        ConfigError,
        "stop_tokens.*two tokens",
    ),
]


@pytest.mark.parametrize(("config", "error", "text"), UNLOADABLE, ids=lambda value: str(value)[:24])
def test_what_cannot_be_loaded_leaves_nothing(
    config: RuntimeConfig, error: type[Exception], text: str
) -> None:
    runtime = Runtime(config)
    with pytest.raises(error, match=text):
        runtime.load()
    assert not our_threads() and not runtime.active
    with pytest.raises(NotActiveError, match="load"):
        runtime.activate()
    runtime.close()


def test_an_encoder_of_another_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = "edge_vlm_ros.vision.onnx_encoder.OnnxEncoder"
    monkeypatch.setattr(f"{encoder}.n_embd", 512)
    monkeypatch.setattr(f"{encoder}.encode", lambda *_: np.zeros((49, 512), np.float32))
    with pytest.raises(ConfigError, match="512 values.*256"):
        Runtime(demo_config(profile=other_profile("encoder", reference=None))).load()
    assert not our_threads()


def test_a_late_failure_stops_what_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine and the encoder run already when the histories are made."""
    monkeypatch.setattr("edge_vlm_ros.runtime.assembly.History", None)
    with pytest.raises(TypeError):
        Runtime(demo_config()).load()
    assert not our_threads()


def test_loading_again_after_a_failure() -> None:
    runtime = Runtime(demo_config(engine=EngineConfig(n_ctx=100)))
    with pytest.raises(ConfigError):
        runtime.load()
    runtime.config = demo_config()
    runtime.load()
    runtime.activate()
    change = changes(1)[0]
    show(runtime, "table", change.clip.frames(change.stop))
    assert answered(runtime.ask("table", change.text)) == change.before
    runtime.close()
    assert not our_threads()


def test_progress_is_reported() -> None:
    reports: list[tuple[str, float]] = []
    runtime = Runtime(demo_config())
    runtime.load(lambda what, fraction: reports.append((what, fraction)))
    runtime.close()
    assert list(dict.fromkeys(what for what, _ in reports)) == [
        "checking files",
        "language model",
        "vision encoder",
        "language engines",
        "ready",
    ]
    fractions = [fraction for what, fraction in reports if what == "language model"]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0


def test_a_life_and_another() -> None:
    runtime = Runtime(demo_config())
    runtime.close()  # not loaded: nothing to do
    with pytest.raises(QuestionRejected, match="no model is loaded"):
        runtime.ask("table", "What changed?")
    with pytest.raises(NotActiveError):
        runtime.engine_status()
    change = changes(1)[0]
    for _ in range(2):
        runtime.load()
        with pytest.raises(RuntimeError, match="loaded already"):
            runtime.load()
        assert not runtime.active
        with pytest.raises(QuestionRejected, match="not active"):
            runtime.ask("table", change.text)
        with pytest.raises(NotActiveError, match="not active"):
            show(runtime, "table", change.clip.frames(1))
        runtime.activate()
        assert runtime.active
        show(runtime, "table", change.clip.frames(change.stop))
        assert answered(runtime.ask("table", change.text)) == change.before
        runtime.close()
        runtime.close()
        assert not runtime.active and not our_threads()
        for call in (
            lambda: runtime.describe("table"),
            lambda: runtime.stream_status("table"),
            lambda: runtime.reset("table"),
            lambda: runtime.commit(1),
            runtime.question_status,
            runtime.vision_status,
            runtime.deactivate,
        ):
            with pytest.raises(NotActiveError):
                call()


def test_closing_from_many_threads_while_others_ask(start: Start) -> None:
    """Whoever comes too late is told so; nobody waits for ever."""
    runtime = start()
    frames = clip(1).frames(4)
    show(runtime, "table", frames)
    ends: list[str] = []

    def use(k: int) -> None:
        for n in itertools.count():
            try:
                if k % 2:
                    runtime.add_frame("table", frames[n % 4], n)
                    runtime.stream_status("table")
                else:
                    runtime.ask("table", "What changed?").result(PATIENCE_S)
            except (NotActiveError, QuestionRejected) as end:
                if isinstance(end, NotActiveError) or end.reason == "inactive":
                    ends.append(type(end).__name__)
                    return

    users = [threading.Thread(target=use, args=(k,)) for k in range(6)]
    closers = [threading.Thread(target=runtime.close) for _ in range(2)]
    for thread in users:
        thread.start()
    answered(runtime.ask("table", "What changed?"))
    for thread in closers:
        thread.start()
    for thread in (*users, *closers):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sorted(ends) == ["NotActiveError"] * 3 + ["QuestionRejected"] * 3
    assert not our_threads()


def test_an_encoder_that_computes_wrongly_is_refused(tmp_path: Path) -> None:
    stored = dict(np.load(demo_profile().encoder.reference))
    name = next(key for key, value in stored.items() if value.dtype == np.float32)
    stored[name] = -stored[name]
    reference = tmp_path / "reference.npz"
    np.savez(reference, **stored)
    runtime = Runtime(demo_config(profile=other_profile("encoder", reference=reference)))
    with pytest.raises(EncoderError, match=r"self-test failed: cosine -1"):
        runtime.load()
    assert not our_threads()


def test_the_engine_is_sized_for_its_streams(start: Start) -> None:
    questions = QuestionLimits(max_question_tokens=32, default_max_tokens=32, max_answer_tokens=32)
    history = HistoryConfig(max_frames=2, max_turns=0)
    runtime = start("table", "shelf", history=history, questions=questions)
    tokens = 3 + 2 * 52
    assert runtime.stream_status("table").max_tokens == tokens
    needed = 2 * 2 * tokens + 4 * answer_cells(questions)
    status = runtime.engine_status()[0].status
    assert needed <= status.cells < needed + 256  # llama.cpp rounds up
    exactly = replace(runtime.config, engines=(EngineConfig(n_ctx=tokens + 64),))
    least = Runtime(exactly)
    least.load()
    least.close()
    with pytest.raises(ConfigError, match=str(tokens + 64)):
        Runtime(replace(runtime.config, engines=(EngineConfig(n_ctx=tokens + 63),))).load()
