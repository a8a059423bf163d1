"""The settings of a runtime that runs on a simulated machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_vlm_ros.history import FrameShape
from edge_vlm_ros.model_profile import (
    EncoderProfile,
    HistoryProfile,
    LanguageProfile,
    ModelProfile,
    OnnxBackend,
    TemplateProfile,
)
from edge_vlm_ros.planning.plan import Objective
from edge_vlm_ros.runtime.config import (
    HistoryConfig,
    PlanningConfig,
    QuestionLimits,
    RuntimeConfig,
    StreamConfig,
)
from edge_vlm_ros.runtime.prompt import PromptTemplate

from .observer import number_of
from .profile import ModelFacts, Profile
from .workload import Workload

FIRST_QUESTION_TOKEN = 1000
"""The first token of question 0; the next question begins with the next token."""

_ASK_TOKENS = 4


@dataclass(frozen=True)
class Limits:
    """What of a runtime's settings matters here; see RuntimeConfig for each."""

    max_frames: int = 12
    keep_frames: int = 6
    max_pending_frames: int = 4
    max_pending_questions: int = 8
    ingest_engine: str = ""
    objective: Objective = "completion"


DEFAULT_LIMITS = Limits()


def tokenize(text: str) -> tuple[int, ...]:
    """A question's number as a token (see FIRST_QUESTION_TOKEN), and as many more as make its
    length."""
    n_tokens = int(text.split()[1])
    filler = max(0, n_tokens - 1 - _ASK_TOKENS)
    return (FIRST_QUESTION_TOKEN + number_of(text), *range(10, 10 + filler))


def prompt_template(model: ModelFacts) -> PromptTemplate:
    """Tokens that stand for those of a template; the sizes are the model's."""
    before = model.wrap_tokens - model.wrap_tokens // 2
    return PromptTemplate(
        open_tokens=(2,) * model.open_tokens,
        frame_shape=FrameShape(
            prefix=(3,) * before,
            suffix=(4,) * (model.wrap_tokens - before),
            n_embeddings=model.frame_tokens,
            n_embedding_positions=model.frame_tokens,
        ),
        ask_tokens=(5,) * _ASK_TOKENS,
        close_tokens=(6,),
        stop_tokens=frozenset(),
    )


def runtime_config(
    profile: Profile, workload: Workload, policy: str, limits: Limits
) -> RuntimeConfig:
    """What a runtime would be configured with on this machine, for this workload."""
    longest = max((question.max_tokens for question in workload.questions), default=1)
    history = HistoryConfig(max_frames=limits.max_frames, keep_frames=limits.keep_frames)
    return RuntimeConfig(
        profile=_model_profile(profile.model, limits),
        streams=tuple(
            StreamConfig(
                name=name,
                history=history,
                max_pending_frames=limits.max_pending_frames,
                ingest_engine=limits.ingest_engine,
            )
            for name in workload.streams
        ),
        engines=tuple(engine.config() for engine in profile.engines),
        questions=QuestionLimits(
            max_pending=limits.max_pending_questions,
            default_max_tokens=longest,
            max_answer_tokens=longest,
        ),
        planning=PlanningConfig(policy=policy, objective=limits.objective, calibration="never"),
    )


def _model_profile(model: ModelFacts, limits: Limits) -> ModelProfile:
    """The sizes that the runtime asks a model profile for; the rest is never looked at."""
    nowhere = Path("simulated")
    return ModelProfile(
        name=model.name,
        language=LanguageProfile(file=nowhere, context_tokens=model.context_tokens),
        encoder=EncoderProfile(
            backends=(OnnxBackend(type="onnx", file=nowhere, input="pixels", output="embeddings"),),
            size=(1, 1),
            resize="stretch",
            n_tokens=model.frame_tokens,
            n_embd=1,
        ),
        template=TemplateProfile(
            open="", frame_prefix="", frame_suffix="", ask=" ", close=" ", stop_tokens=(" ",)
        ),
        history=HistoryProfile(
            max_frames=limits.max_frames, keep_frames=limits.keep_frames, max_turns=0
        ),
    )
