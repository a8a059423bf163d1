"""Everything that can be set about a runtime. Values are checked where they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.history.limits import FullPolicy
from edge_vlm_ros.model_profile import ModelProfile
from edge_vlm_ros.planning.costs import ENCODER
from edge_vlm_ros.planning.plan import Objective

PendingPolicy = Literal["latest", "reject"]
CommitOrder = Literal["arrival", "completion"]


class ConfigError(ValueError):
    """A setting contradicts another one or what the model can do."""


@dataclass(frozen=True)
class HistoryConfig:
    """How much a stream remembers; None takes what the model profile recommends.

    ``max_tokens`` defaults to what ``max_frames`` frames and ``max_turns`` of the longest turns
    need, as far as the model's trained context allows.
    """

    max_frames: int | None = None
    keep_frames: int | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    on_full: FullPolicy = "drop_oldest"


@dataclass(frozen=True)
class StreamConfig:
    """One camera stream.

    ``max_fps`` 0 and ``change_threshold`` 0 switch those gates off. At most
    ``max_pending_frames`` frames are registered and not yet published. With the policy ``latest``
    the newest frame beyond that stands by until there is room or a question needs it, in the place
    of an older one; with ``reject`` it is refused. ``ingest_engine`` computes the frames; empty
    leaves it to the planning policy, which begins with the first engine.
    """

    name: str
    history: HistoryConfig = field(default_factory=HistoryConfig)
    max_fps: float = 0.0
    change_threshold: float = 0.0
    max_pending_frames: int = 4
    pending_policy: PendingPolicy = "latest"
    ingest_engine: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a stream needs a name")
        if self.max_fps < 0 or self.change_threshold < 0:
            raise ConfigError(f"stream {self.name!r}: max_fps and change_threshold must be >= 0")
        if self.change_threshold > 255:
            raise ConfigError(
                f"stream {self.name!r}: change_threshold is {self.change_threshold}, but grey "
                "levels differ by 255 at most"
            )
        if self.max_pending_frames < 1:
            raise ConfigError(f"stream {self.name!r}: max_pending_frames must be at least 1")
        if self.pending_policy not in ("latest", "reject"):
            raise ConfigError(f"stream {self.name!r}: pending_policy must be latest or reject")


@dataclass(frozen=True)
class QuestionLimits:
    """Bounds of what may be asked at once."""

    max_pending: int = 8
    """Questions accepted and not yet finished."""
    max_question_tokens: int = 128
    """Tokens of one question with its template."""
    default_max_tokens: int = 96
    """Length of an answer when the question does not say."""
    max_answer_tokens: int = 256
    """What a question may ask for at most."""
    commit_order: CommitOrder = "completion"
    """In which order answers of a stream enter its history. With ``arrival`` the result of an
    answer that is to be committed waits for those of the questions asked before it."""

    def __post_init__(self) -> None:
        if min(self.max_pending, self.max_question_tokens, self.default_max_tokens) < 1:
            raise ConfigError("question limits must be at least 1")
        if self.default_max_tokens > self.max_answer_tokens:
            raise ConfigError(
                f"default_max_tokens ({self.default_max_tokens}) is above max_answer_tokens "
                f"({self.max_answer_tokens})"
            )
        if self.commit_order not in ("arrival", "completion"):
            raise ConfigError("commit_order must be arrival or completion")


@dataclass(frozen=True)
class VisionConfig:
    """The encoder's threads and the bounds of the embedding cache."""

    n_threads: int = 1
    cache_entries: int = 256
    cache_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        if self.n_threads < 1 or self.cache_entries < 0 or self.cache_bytes < 0:
            raise ConfigError(
                f"vision: n_threads ({self.n_threads}) must be at least 1, cache_entries "
                f"({self.cache_entries}) and cache_bytes ({self.cache_bytes}) at least 0"
            )


@dataclass(frozen=True)
class PlacementConfig:
    """Where KV is kept besides the engines, and how engines that fail come back.

    ``snapshot_entries`` and ``snapshot_bytes`` bound the exported KV kept in host memory;
    ``prefix_entries`` bounds the index of prefixes that engines hold. A failed engine is started
    again after ``retry_s`` seconds, then after twice as long each time, up to ``max_retry_s``.
    """

    snapshot_entries: int = 64
    snapshot_bytes: int = 256 * 2**20
    prefix_entries: int = 4096
    retry_s: float = 1.0
    max_retry_s: float = 60.0

    def __post_init__(self) -> None:
        if min(self.snapshot_entries, self.snapshot_bytes, self.prefix_entries) < 0:
            raise ConfigError(
                f"placement: snapshot_entries ({self.snapshot_entries}), snapshot_bytes "
                f"({self.snapshot_bytes}) and prefix_entries ({self.prefix_entries}) must be at "
                "least 0"
            )
        if not 0.0 < self.retry_s <= self.max_retry_s:
            raise ConfigError(
                f"placement: retry_s ({self.retry_s}) must be above 0 and at most max_retry_s "
                f"({self.max_retry_s})"
            )


@dataclass(frozen=True)
class PlanningConfig:
    """Which engine answers which question.

    ``policy``: ``sdep`` compares complete paths by what they cost; the others are baselines, see
    planning/policies.py. ``objective``: what sdep makes early, the end of an answer or its first
    token. ``calibration``: ``auto`` measures the engines at ``load`` unless what was measured
    before with the same model, engines and machine is on disk, ``always`` measures anew, ``never``
    begins with rough guesses, which are corrected as work is done. ``calibration_folder`` keeps the
    results; empty: ``calibration`` in the user's cache folder of this package.
    """

    policy: str = "sdep"
    objective: Objective = "completion"
    calibration: Literal["auto", "always", "never"] = "auto"
    calibration_folder: str = ""

    def __post_init__(self) -> None:
        if self.objective not in ("completion", "first_token"):
            raise ConfigError(
                f"planning: objective must be completion or first_token, not {self.objective!r}"
            )
        if self.calibration not in ("auto", "always", "never"):
            raise ConfigError(
                f"planning: calibration must be auto, always or never, not {self.calibration!r}"
            )


@dataclass(frozen=True)
class RuntimeConfig:
    """A model, the streams it watches, the engines that answer and the bounds of it all."""

    profile: ModelProfile
    streams: tuple[StreamConfig, ...]
    engines: tuple[EngineConfig, ...] = (EngineConfig(),)
    questions: QuestionLimits = field(default_factory=QuestionLimits)
    vision: VisionConfig = field(default_factory=VisionConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    planning: PlanningConfig = field(default_factory=PlanningConfig)

    def __post_init__(self) -> None:
        names = [stream.name for stream in self.streams]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"streams need distinct names and there must be one: {names}")
        engines = [engine.name for engine in self.engines]
        if not engines or len(set(engines)) != len(engines):
            raise ConfigError(f"engines need distinct names and there must be one: {engines}")
        if ENCODER in engines:
            raise ConfigError(
                f"engine {ENCODER!r}: this is what the vision encoder is called in costs and "
                "traces; give the engine another name"
            )
        for stream in self.streams:
            if stream.ingest_engine and stream.ingest_engine not in engines:
                raise ConfigError(
                    f"stream {stream.name!r}: no engine {stream.ingest_engine!r} to ingest it; "
                    f"there are: {', '.join(engines)}"
                )

    def ingest_engine(self, stream: StreamConfig) -> str:
        """The name of the engine that computes the frames of ``stream``."""
        return stream.ingest_engine or self.engines[0].name
