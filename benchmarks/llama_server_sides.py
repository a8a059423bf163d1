"""The two sides of the comparison: this package's runtime, and llama-server with its prompt cache.

Both remember the same streams of stand-in frames, are asked the same questions and answer them with
the same number of tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

from edge_vlm_ros.model_profile import ModelProfile
from edge_vlm_ros.runtime import (
    AskOptions,
    EngineConfig,
    HistoryConfig,
    QuestionLimits,
    Runtime,
    RuntimeConfig,
    StreamConfig,
)

from .llama_server_process import Client, LlamaServer, ServerError
from .stand_ins import MAX_FRAMES, StandIn

N_STREAMS = 2
_SETTLE_TIMEOUT_S = 300.0
_LONGEST_ANSWER = 64


@dataclass(frozen=True)
class Settings:
    """What both sides have in common."""

    n_threads: int
    n_ctx: int = 8192
    kv_type: str = "q8_0"


@dataclass(frozen=True)
class Asked:
    """Milliseconds to the first token (from before the new frame was handed over, if there was
    one), the answer, and the tokens of history and question."""

    ttft_ms: float
    token_ids: tuple[int, ...]
    prompt_tokens: int


class Side(Protocol):
    """Streams are numbered from 0. Different streams may be asked from different threads."""

    name: str

    def reset(self) -> None:
        """Forget all histories."""

    def see(self, stream: int, frame: StandIn) -> None:
        """A frame arrives."""

    def pass_time(self) -> None:
        """Nothing is asked for so long that everything is done which is done unasked."""

    def catch_up(self) -> None:
        """Have everything seen computed."""

    def ask(self, stream: int, question: str, n_tokens: int, new: StandIn | None = None) -> Asked:
        """Ask about all frames seen, the ``new`` one included, which has just arrived."""


class RuntimeSide:
    """The runtime of this package with one CPU engine."""

    name = "edge_vlm_ros"

    def __init__(self, profile: ModelProfile, settings: Settings) -> None:
        streams = tuple(
            StreamConfig(
                str(n), HistoryConfig(max_frames=MAX_FRAMES), max_pending_frames=MAX_FRAMES
            )
            for n in range(N_STREAMS)
        )
        engine = EngineConfig(n_threads=settings.n_threads, n_ctx=settings.n_ctx)
        if engine.kv_type != settings.kv_type:
            raise ValueError(f"the engine's KV type is {engine.kv_type}, not {settings.kv_type}")
        limits = QuestionLimits(
            max_question_tokens=64,
            max_answer_tokens=_LONGEST_ANSWER,
            default_max_tokens=_LONGEST_ANSWER,
        )
        self._runtime = Runtime(RuntimeConfig(profile, streams, (engine,), limits))
        self._stamp = 0
        self._runtime.load()
        self._runtime.activate()

    def reset(self) -> None:
        for n in range(N_STREAMS):
            self._runtime.reset(str(n))

    def see(self, stream: int, frame: StandIn) -> None:
        self._stamp += 1
        self._runtime.add_frame(str(stream), frame.picture, self._stamp)

    def pass_time(self) -> None:
        self.catch_up()

    def catch_up(self) -> None:
        end = time.monotonic() + _SETTLE_TIMEOUT_S
        while not all(self._is_published(n) for n in range(N_STREAMS)):
            if time.monotonic() > end:
                raise RuntimeError(f"frames were not computed within {_SETTLE_TIMEOUT_S:g} s")
            time.sleep(0.002)

    def _is_published(self, stream: int) -> bool:
        status = self._runtime.stream_status(str(stream))
        return status.pending_frames == 0 and status.published == status.registered

    def ask(self, stream: int, question: str, n_tokens: int, new: StandIn | None = None) -> Asked:
        started = time.perf_counter()
        if new is not None:
            self.see(stream, new)
        answer = self._runtime.ask(str(stream), question, AskOptions(max_tokens=n_tokens))
        first: float | None = None
        for update in answer:
            if first is None and update.generated_tokens:
                first = time.perf_counter()
        result = answer.result()
        if first is None:
            raise RuntimeError(f"no token came: {result.error or result.finish_reason}")
        tokens = result.metrics.history_tokens + result.metrics.prompt_tokens
        return Asked(1000.0 * (first - started), result.token_ids, tokens)

    def close(self) -> None:
        self._runtime.close()


@dataclass(frozen=True)
class PromptPieces:
    """A profile's template as token ids, as the runtime takes it."""

    open: tuple[int, ...]
    frame_prefix: tuple[int, ...]
    frame_suffix: tuple[int, ...]
    ask: tuple[int, ...]

    @staticmethod
    def of(profile: ModelProfile, client: Client) -> PromptPieces:
        template = profile.template
        texts = (template.open, template.frame_prefix, template.frame_suffix, template.ask)
        return PromptPieces(*(client.tokenize(text, parse_special=True) for text in texts))

    def frame(self, frame: StandIn) -> tuple[int, ...]:
        return (*self.frame_prefix, *frame.token_ids, *self.frame_suffix)

    def question(self, question: Sequence[int]) -> tuple[int, ...]:
        return (*question, *self.ask)


def server_options(weights: Path, settings: Settings) -> list[str]:
    """llama-server for two streams, each with a slot of its own that keeps its history.

    What is left out is the server's default: batches of 2048 and 512 tokens, continuous batching.
    """
    return [
        *("--model", str(weights), "--offline"),
        *("--parallel", str(N_STREAMS), "--kv-unified", "--ctx-size", str(settings.n_ctx)),
        *("--threads", str(settings.n_threads), "--threads-batch", str(settings.n_threads)),
        *("--flash-attn", "on"),
        *("--cache-type-k", settings.kv_type, "--cache-type-v", settings.kv_type),
        # Slots keep what they have: no copies to host memory when the other one is asked.
        *("--cache-ram", "0", "--no-cache-idle-slots", "--no-context-shift"),
    ]


class ServerSide:
    """llama-server: the client keeps the history and sends all of it with every question; the
    stream's slot computes what it does not have."""

    name = "llama-server"

    def __init__(self, client: Client, pieces: PromptPieces) -> None:
        self._client = client
        self._pieces = pieces
        self._questions: dict[str, tuple[int, ...]] = {}
        self.reset()

    def reset(self) -> None:
        self._histories = [list(self._pieces.open) for _ in range(N_STREAMS)]
        self._kept = [0] * N_STREAMS  # tokens of the history that the stream's slot has

    def see(self, stream: int, frame: StandIn) -> None:
        self._histories[stream] += self._pieces.frame(frame)

    def pass_time(self) -> None:
        """The server hears of frames when it is asked."""

    def catch_up(self) -> None:
        for slot, history in enumerate(self._histories):
            self._client.compute(history, slot)
            self._kept[slot] = len(history)

    def ask(self, stream: int, question: str, n_tokens: int, new: StandIn | None = None) -> Asked:
        asked = self._pieces.question(self._tokens(question))  # not part of the time
        started = time.perf_counter()
        if new is not None:
            self.see(stream, new)
        prompt = [*self._histories[stream], *asked]
        done = self._client.complete(prompt, stream, n_tokens, started)
        if done.cached_tokens < self._kept[stream]:
            raise ServerError(
                f"slot {stream} had {done.cached_tokens} of {self._kept[stream]} tokens: its cache "
                "does not work as this benchmark means it to"
            )
        self._kept[stream] = len(prompt) - len(asked)
        return Asked(done.ttft_ms, done.token_ids, len(prompt))

    def _tokens(self, question: str) -> tuple[int, ...]:
        if question not in self._questions:
            self._questions[question] = self._client.tokenize(question, parse_special=False)
        return self._questions[question]


class Sides:
    """Both sides of one model, closed at the end."""

    def __init__(
        self, profile: ModelProfile, settings: Settings, executable: Path, log: IO[bytes]
    ) -> None:
        options = server_options(profile.language.file, settings)
        self._server = LlamaServer(executable, options, log)
        try:
            client = Client(self._server.port)
            theirs = ServerSide(client, PromptPieces.of(profile, client))
            self._ours = RuntimeSide(profile, settings)
        except BaseException:
            self._server.close()
            raise
        self._both: tuple[Side, Side] = (self._ours, theirs)

    def in_turns(self, turn: int) -> tuple[Side, Side]:
        """Both sides, the other one first in every second turn."""
        return self._both if turn % 2 == 0 else (self._both[1], self._both[0])

    def __enter__(self) -> Sides:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ours.close()
        self._server.close()
