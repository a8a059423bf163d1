"""What goes on in a soak: cameras, askers, and somebody who moves state about."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_vlm_ros.demo.stream import TableStream
from edge_vlm_ros.demo.texture import TRAINED_SIZE
from edge_vlm_ros.runtime import (
    Answer,
    AskOptions,
    CommitError,
    EngineConfig,
    HistoryConfig,
    PlacementConfig,
    QuestionLimits,
    QuestionRejected,
    Runtime,
    RuntimeConfig,
    Stamp,
    StreamConfig,
    VisionConfig,
    load_profile,
)

ROOT = Path(__file__).resolve().parents[2]
STREAMS = ("table", "shelf")
ENGINES = ("cpu", "far")
N_PICTURES = 64
N_ASKERS = 5
RATE_HZ = 10.0
LONGEST_SILENCE_S = 60.0
"""After so many seconds without a sign a question counts as lost."""

_HISTORY_TOKENS = 456
_ANSWER_TOKENS = 24
_QUESTION_TOKENS = 40
_QUESTIONS_PER_STREAM = 48

WAYS = {
    "plain": 3, "engine": 2, "import": 2, "replay": 2, "handoff": 3, "older": 1,
    "commit": 2, "commit later": 1, "cancel": 2, "deadline": 1, "cancel handoff": 1,
}  # fmt: skip
"""How questions are asked, and how often each way is taken."""

Picture = npt.NDArray[np.uint8]


def soak_config() -> RuntimeConfig:
    """Two streams, two engines, and too little of everything: each engine has cells for one full
    history, there are fewer pending questions than askers, hardly more embeddings than two
    histories have frames, and snapshots of a few histories."""
    history = HistoryConfig(max_frames=6, keep_frames=3, max_turns=2, max_tokens=_HISTORY_TOKENS)
    cells = _HISTORY_TOKENS + _QUESTION_TOKENS + _ANSWER_TOKENS
    settings = dict(n_threads=1, n_ctx=cells, max_parallel=2)
    return RuntimeConfig(
        load_profile(ROOT / "config" / "models" / "demo.yaml"),
        tuple(StreamConfig(name, history, max_pending_frames=3) for name in STREAMS),
        (
            EngineConfig(name="cpu", **settings),  # type: ignore[arg-type]
            EngineConfig(name="far", device="rpc", **settings),  # type: ignore[arg-type]
        ),
        QuestionLimits(
            max_pending=4,
            max_question_tokens=_QUESTION_TOKENS,
            default_max_tokens=_ANSWER_TOKENS,
            max_answer_tokens=_ANSWER_TOKENS,
            commit_order="arrival",
        ),
        VisionConfig(cache_entries=16),
        PlacementConfig(snapshot_entries=6, snapshot_bytes=2**20, prefix_entries=64),
    )


@dataclass
class Scenery:
    """Pictures of each stream, shown over and over, and questions about them."""

    pictures: dict[str, list[Picture]]
    questions: dict[str, list[str]]

    @classmethod
    def draw(cls, seed: int) -> Scenery:
        rng = random.Random(seed)
        pictures, questions = {}, {}
        for k, stream in enumerate(STREAMS):
            table = TableStream(100 * seed + k, width=TRAINED_SIZE, height=TRAINED_SIZE)
            pictures[stream] = [table.frame(index) for index in range(N_PICTURES)]
            asked = (table.ask_about(i, i + 6, rng) for i in range(_QUESTIONS_PER_STREAM))
            questions[stream] = [question.text for question in asked if question is not None]
        return cls(pictures, questions)

    def picture(self, stream: str, stamp: int) -> Picture:
        return self.pictures[stream][stamp % N_PICTURES]


class Stopped(Exception):
    """The soak is over."""


class Player(threading.Thread):
    """Does ``act`` again and again until it is stopped; what goes wrong goes to ``complain``."""

    def __init__(self, name: str, complain: Callable[[str], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._complain = complain
        self._over = threading.Event()

    def act(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self.act()
        except Stopped:
            pass
        except Exception as error:
            self._complain(f"{self.name}: {type(error).__name__}: {error}")

    def pause(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise Stopped

    def stop(self) -> None:
        self._over.set()


class Camera(Player):
    """Films at a steady rate; the stamp of a frame is its number."""

    def __init__(
        self, runtime: Runtime, stream: str, scenery: Scenery, complain: Callable[[str], None]
    ) -> None:
        super().__init__(f"camera {stream}", complain)
        self._runtime, self._stream, self._scenery = runtime, stream, scenery
        self.sent = 0
        self._next = time.monotonic()

    def act(self) -> None:
        self.pause(max(0.0, self._next - time.monotonic()))
        self._next = max(self._next + 1 / RATE_HZ, time.monotonic())
        picture = self._scenery.picture(self._stream, self.sent)
        self._runtime.add_frame(self._stream, picture, self.sent)
        self.sent += 1


class Mover(Player):
    """Moves ingestion, evicts state, and now and then resets a stream."""

    def __init__(self, runtime: Runtime, seed: int, complain: Callable[[str], None]) -> None:
        super().__init__("mover", complain)
        self._runtime, self._rng = runtime, random.Random(seed)

    def act(self) -> None:
        rng = self._rng
        self.pause(rng.uniform(0.5, 3.0))
        stream, engine = rng.choice(STREAMS), rng.choice(ENGINES)
        kind = rng.choices(("move", "evict", "reset"), (4, 4, 1))[0]
        if kind == "move":
            self._runtime.move_ingestion(stream, engine)
        elif kind == "evict":
            self._runtime.evict(stream, engine)
        else:
            self._runtime.reset(stream)


class Asker(Player):
    """Asks one question after the other, in every way there is."""

    def __init__(
        self, runtime: Runtime, seed: int, scenery: Scenery, complain: Callable[[str], None]
    ) -> None:
        super().__init__(f"asker {seed}", complain)
        self._runtime, self._rng, self._scenery = runtime, random.Random(seed), scenery
        self.ways: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.results = 0

    def act(self) -> None:
        rng = self._rng
        stream = rng.choice(STREAMS)
        way = rng.choices(list(WAYS), list(WAYS.values()))[0]
        options = AskOptions(**self._options(way, stream))
        question = rng.choice(self._scenery.questions[stream])
        try:
            answer = self._runtime.ask(stream, question, options)
        except QuestionRejected as rejection:
            self.refused[rejection.reason] += 1
            self.pause(rng.uniform(0.0, 0.05))
            return
        if "cancel" in way:
            time.sleep(rng.uniform(0.0, 0.06))
            answer.cancel()
        self._follow(answer, way)

    def _follow(self, answer: Answer, way: str) -> None:
        deltas: Sequence[str] = []
        for update in iter(lambda: answer.next_update(LONGEST_SILENCE_S), None):
            if update.delta:
                if update.sequence != len(deltas):
                    raise AssertionError(
                        f"piece {update.sequence} of answer {answer.answer_id} came as the "
                        f"{len(deltas)}th"
                    )
                deltas = [*deltas, update.delta]
        result = answer.result()
        if "".join(deltas) != result.text:
            raise AssertionError(f"the pieces {deltas} are not the text {result.text!r}")
        self.results += 1
        self.ways[way] += 1
        if way == "commit later":
            try:
                self._runtime.commit(answer.answer_id)
            except CommitError:
                self.refused["commit"] += 1

    def _options(self, way: str, stream: str) -> dict[str, Any]:
        rng = self._rng
        engine, other = rng.sample(ENGINES, 2)
        if "handoff" in way:
            return {"engine": engine, "prefill_engine": other}
        if way in ("import", "replay"):
            return {"engine": engine, "path": way}
        if way == "deadline":
            return {"deadline_s": rng.uniform(0.005, 0.1), "engine": rng.choice(("", engine))}
        if way == "older":
            newest = self._runtime.stream_status(stream).frames_received
            return {"binding": Stamp(max(0, newest - rng.randint(1, 6))), "engine": engine}
        return {"engine": engine} if way == "engine" else {"commit": way == "commit"}
