"""The coordinator and the public API without ROS."""

from __future__ import annotations

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.engines.protocol import FinishReason
from edge_vlm_ros.engines.sampling import SamplingParameters
from edge_vlm_ros.history import NewestPublished, NewestRegistered, Stamp, VersionBinding
from edge_vlm_ros.model_profile import load_profile

from .answer import (
    Answer,
    AnswerMetrics,
    AnswerResult,
    AnswerState,
    AnswerUpdate,
    AskOptions,
    ContextUsed,
    QuestionRejected,
)
from .config import (
    ConfigError,
    HistoryConfig,
    PlacementConfig,
    PlanningConfig,
    QuestionLimits,
    RuntimeConfig,
    StreamConfig,
    VisionConfig,
)
from .finished_answers import CommitError
from .listener import RuntimeListener
from .runtime import NotActiveError, Runtime, UnknownEngineError, UnknownStreamError

__all__ = [
    "Answer",
    "AnswerMetrics",
    "AnswerResult",
    "AnswerState",
    "AnswerUpdate",
    "AskOptions",
    "CommitError",
    "ConfigError",
    "ContextUsed",
    "EngineConfig",
    "FinishReason",
    "HistoryConfig",
    "NewestPublished",
    "NewestRegistered",
    "NotActiveError",
    "PlacementConfig",
    "PlanningConfig",
    "QuestionLimits",
    "QuestionRejected",
    "Runtime",
    "RuntimeConfig",
    "RuntimeListener",
    "SamplingParameters",
    "Stamp",
    "StreamConfig",
    "UnknownEngineError",
    "UnknownStreamError",
    "VersionBinding",
    "VisionConfig",
    "load_profile",
]
