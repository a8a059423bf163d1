"""How large histories and KV caches must be for a configuration."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edge_vlm_ros.engines.config import EngineConfig
from edge_vlm_ros.history import HistoryLimits
from edge_vlm_ros.model_profile import ModelProfile

from .config import ConfigError, HistoryConfig, QuestionLimits
from .prompt import PromptTemplate

_logger = logging.getLogger(__name__)

TRUNKS_PER_STREAM = 2
"""The current epoch of a stream, and the one it replaces until it has caught up."""


def history_limits(
    config: HistoryConfig,
    profile: ModelProfile,
    prompt: PromptTemplate,
    questions: QuestionLimits,
) -> HistoryLimits:
    """Fill in what the configuration leaves to the profile. Raises ConfigError."""
    recommended = profile.history
    max_frames = _default(config.max_frames, recommended.max_frames)
    keep_frames = _default(config.keep_frames, min(recommended.keep_frames, max_frames // 2))
    max_turns = _default(config.max_turns, recommended.max_turns)
    shape = prompt.frame_shape
    frame = len(shape.prefix) + shape.n_embeddings + len(shape.suffix)
    turn = answer_cells(questions) + len(prompt.close_tokens)
    wanted = len(prompt.open_tokens) + max_frames * frame + max_turns * turn
    most = profile.language.context_tokens - answer_cells(questions)
    max_tokens = _default(config.max_tokens, min(wanted, most))
    if max_tokens > most:
        raise ConfigError(
            f"a history of {max_tokens} tokens and a question with its answer "
            f"({answer_cells(questions)} tokens) exceed the {profile.language.context_tokens} "
            f"tokens the model was trained on: lower max_tokens to {most}, or the question limits"
        )
    needed = len(prompt.open_tokens) + (keep_frames + 1) * frame
    if max_tokens < needed:
        raise ConfigError(
            f"a history of {max_tokens} tokens has no room for the {keep_frames} frames that are "
            f"kept when it is full and a new one ({frame} tokens each): raise max_tokens to "
            f"{needed}, or lower keep_frames or the question limits"
        )
    try:
        return HistoryLimits(max_tokens, max_frames, keep_frames, max_turns, config.on_full)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def answer_cells(questions: QuestionLimits) -> int:
    """KV cells that the longest question and its answer take behind their history."""
    return questions.max_question_tokens + questions.max_answer_tokens


def context_cells(
    engine: EngineConfig, limits: Sequence[HistoryLimits], questions: QuestionLimits
) -> int:
    """KV cells of an engine's context. Raises ConfigError when the configured number is too low for
    a question about the longest history. With fewer cells than all histories need together, idle
    ones are evicted."""
    trunks = TRUNKS_PER_STREAM * sum(limit.max_tokens for limit in limits)
    answer = answer_cells(questions)
    if not engine.n_ctx:
        return trunks + engine.max_parallel * answer
    least = max(limit.max_tokens for limit in limits) + answer
    if engine.n_ctx < least:
        raise ConfigError(
            f"engine {engine.name!r}: n_ctx is {engine.n_ctx}, but the longest history and one "
            f"answer need {least} cells: raise n_ctx to {least} or more, set it to 0 (automatic), "
            "or lower max_tokens"
        )
    if engine.n_ctx < trunks + answer:
        _logger.warning(
            "engine %s: n_ctx %d holds not all histories at once (that takes %d cells): those that "
            "are not in use make room and are imported or replayed when they are asked about",
            engine.name,
            engine.n_ctx,
            trunks + answer,
        )
    return engine.n_ctx


def _default(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
