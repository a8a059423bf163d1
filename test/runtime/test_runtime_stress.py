"""Random use of a runtime that is too small for it: every question ends, all of it is released,
and every answer is that of a bare loop over what it was bound to."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import (
    PATIENCE_S,
    Frame,
    Start,
    all_encoded,
    assert_released,
    clip,
    demo_config,
    engine_of,
    eventually,
    hold_ingestion,
)

from edge_vlm_ros.engines.errors import ComputeError
from edge_vlm_ros.history import FrameItem, History, HistoryFull, Item, TextRole
from edge_vlm_ros.runtime import (
    Answer,
    AnswerState,
    AnswerUpdate,
    AskOptions,
    CommitError,
    EngineConfig,
    FinishReason,
    HistoryConfig,
    NewestPublished,
    QuestionLimits,
    QuestionRejected,
    Runtime,
    RuntimeConfig,
    RuntimeListener,
    Stamp,
    StreamConfig,
    VersionBinding,
)
from edge_vlm_ros.vision.errors import EncoderError
from tools.reference_loop import ReferenceLoop

STREAMS = ("table", "shelf")
QUESTIONS = ("How many things?", "What changed?", "Is there a dog?", "List the objects.")
N_OPERATIONS = 300
N_PICTURES = 24


def small_config(names: Sequence[str] = STREAMS, max_pending_frames: int = 3) -> RuntimeConfig:
    """Room for three frames and a turn, two answers at once, and not one cell too many."""
    questions = QuestionLimits(
        max_pending=6, max_question_tokens=16, default_max_tokens=24, max_answer_tokens=24
    )
    history = HistoryConfig(max_frames=3, keep_frames=1, max_turns=1, max_tokens=3 + 3 * 52 + 45)
    streams = [StreamConfig(name, history, max_pending_frames=max_pending_frames) for name in names]
    cells = 2 * len(names) * (3 + 3 * 52 + 45) + 16 + 24
    engine = EngineConfig(n_threads=1, n_ctx=cells, max_parallel=2, chunk_tokens=16)
    return demo_config(*streams, questions=questions, engine=engine)


class Recorder(RuntimeListener):
    """Notes the items that each answer is bound to, at the moment it is handed to the engine."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.bound: dict[int, tuple[Item, ...]] = {}

    def answer_updated(self, answer: Answer, update: AnswerUpdate) -> None:
        if update.state is not AnswerState.QUEUED or self.runtime is None:
            return
        coordinator = self.runtime._loaded()
        version = coordinator.answering.questions[answer.answer_id].version
        epoch = coordinator.streams[answer.stream].history.epoch(version.epoch)
        self.bound[answer.answer_id] = epoch.computed(0, version.n)


@dataclass
class Chaos:
    """Slow and failing parts, from a seed of their own."""

    rng: random.Random
    encoder: float = 0.05
    engine: float = 0.01

    def install(self, runtime: Runtime) -> None:
        self._wrap(runtime._parts.encoder.encoders[0], "encode", self.encoder, EncoderError, 0.01)
        context = engine_of(runtime)._context
        self._wrap(context, "decode_embeddings", self.engine, ComputeError, 0.003)
        self._wrap(context, "decode_tokens", self.engine, ComputeError, 0.001)

    def _wrap(
        self, owner: Any, method: str, rate: float, error: type[Exception], delay_s: float
    ) -> None:
        original = getattr(owner, method)

        def wrapped(*arguments: Any) -> Any:
            time.sleep(self.rng.random() * delay_s)
            if self.rng.random() < rate:
                raise error("bad luck")
            return original(*arguments)

        setattr(owner, method, wrapped)


class User:
    """Does one random thing after another."""

    def __init__(self, runtime: Runtime, rng: random.Random) -> None:
        self.runtime = runtime
        self.rng = rng
        self.answers: list[Answer] = []
        self.refused: Counter[str] = Counter()
        self.shown = dict.fromkeys(STREAMS, 0)

    def act(self) -> None:
        kinds = ("show", "ask", "cancel", "commit", "reset", "pause", "sleep")
        kind = self.rng.choices(kinds, (40, 30, 4, 6, 2, 0.5, 12))[0]
        getattr(self, f"_{kind}")(self.rng.choice(STREAMS))

    def _show(self, stream: str) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            k = self.shown[stream]
            self.runtime.add_frame(stream, picture(stream, k), k)
            self.shown[stream] = k + 1

    def _ask(self, stream: str) -> None:
        options = AskOptions(
            binding=self._binding(stream),
            deadline_s=self.rng.choice((0, 0, 0, 0, 0.02)),
            commit=self.rng.random() < 0.4,
        )
        try:
            self.answers.append(self.runtime.ask(stream, self.rng.choice(QUESTIONS), options))
        except QuestionRejected as rejection:
            self.refused[rejection.reason] += 1
            if rejection.reason == "queue_full" and self.rng.random() < 0.7:
                self.answers[self.rng.randrange(-6, 0)].result(PATIENCE_S)

    def _binding(self, stream: str) -> Any:
        newest = self.runtime.stream_status(stream).registered
        old = self.rng.randint(0, 2)
        return self.rng.choice(
            (
                AskOptions().binding,
                AskOptions().binding,
                NewestPublished(),
                Stamp(max(0, self.shown[stream] - 1 - old)),
                VersionBinding(newest.epoch, max(1, newest.n - old)),
                VersionBinding(newest.epoch - old, self.rng.randint(1, 6)),
            )
        )

    def _cancel(self, stream: str) -> None:
        if self.answers:
            self.rng.choice(self.answers[-6:]).cancel()

    def _commit(self, stream: str) -> None:
        if self.answers:
            try:
                self.runtime.commit(self.rng.choice(self.answers[-6:]).answer_id)
            except (CommitError, HistoryFull):
                self.refused["commit"] += 1

    def _reset(self, stream: str) -> None:
        self.runtime.reset(stream)

    def _pause(self, stream: str) -> None:
        self.runtime.deactivate(PATIENCE_S)
        assert self.runtime.question_status().pending == 0
        self.runtime.activate()

    def _sleep(self, stream: str) -> None:
        time.sleep(self.rng.random() * 0.05)


def picture(stream: str, k: int) -> Frame:
    return clip(21 + STREAMS.index(stream)).frames(N_PICTURES)[k % N_PICTURES]


_encoded: dict[tuple[str, int], npt.NDArray[np.float32]] = {}


def bare_answer(
    reference: ReferenceLoop, stream: str, items: tuple[Item, ...], question: str
) -> list[int]:
    reference.reset()
    for item in items:
        if isinstance(item, FrameItem):
            key = (stream, item.stamp_ns % N_PICTURES)
            if key not in _encoded:
                _encoded[key] = reference.encode(picture(*key))
            reference.add_embeddings(_encoded[key])
        elif item.role is TextRole.TURN:
            reference._eval_tokens(list(item.tokens))
    return reference.ask(question, 24)[0]


def test_questions_about_many_epochs_at_once(
    start: Start, reference: ReferenceLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is bound to a history that has been rebuilt since. Together they need more cells than
    there are: one after the other is computed and let go of."""
    monkeypatch.setattr(History, "must_wait", lambda history: False)
    recorder = Recorder()
    runtime = start(config=small_config(["table"], max_pending_frames=64), listener=recorder)
    recorder.runtime = runtime
    answers = []
    with hold_ingestion(runtime) as gate:
        for k in range(14):
            runtime.add_frame("table", picture("table", k), k)
            eventually(lambda: all_encoded(runtime, "table"))
            if k % 2 == 0 and len(answers) < 6:
                answers.append(runtime.ask("table", QUESTIONS[k % 4]))
        gate.open()
        results = [answer.result(PATIENCE_S) for answer in answers]
    assert len({result.context.version.epoch for result in results}) >= 5
    for result in results:
        items = recorder.bound[result.answer_id]
        ids = bare_answer(reference, "table", items, result.question)
        assert list(result.token_ids) == ids
    assert_released(runtime)


@pytest.mark.parametrize("seed", range(6))
def test_random_use(start: Start, reference: ReferenceLoop, seed: int) -> None:
    recorder = Recorder()
    runtime = start(config=small_config(), listener=recorder)
    recorder.runtime = runtime
    Chaos(random.Random(1000 + seed), engine=0.0 if seed % 2 else 0.01).install(runtime)
    user = User(runtime, random.Random(seed))
    for _ in range(N_OPERATIONS):
        user.act()
    results = [answer.result(PATIENCE_S) for answer in user.answers]
    assert len(results) > 30
    eventually(lambda: all(runtime.stream_status(s).pending_frames == 0 for s in STREAMS))
    for stream in STREAMS:  # an ingestion that was given up goes on with the next frame
        runtime.reset(stream)
    assert_released(runtime)
    status = runtime.question_status()
    assert status.accepted == sum(status.finished.values()) == len(results)
    assert not any("cells" in result.error for result in results)
    n_checked = 0
    for result in results:
        if result.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            continue
        items = recorder.bound[result.answer_id]
        ids = bare_answer(reference, result.stream, items, result.question)
        assert list(result.token_ids) == ids
        n_checked += 1
    assert n_checked > 10
