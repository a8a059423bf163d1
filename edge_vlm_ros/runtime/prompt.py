"""The tokens around frames, questions and answers of one model."""

from __future__ import annotations

from dataclasses import dataclass

from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.history import FrameShape, embedding_positions
from edge_vlm_ros.model_profile import ModelProfile

from .config import ConfigError


@dataclass(frozen=True)
class PromptTemplate:
    """A profile's template in token ids. Each piece is tokenized by itself."""

    open_tokens: tuple[int, ...]
    frame_shape: FrameShape
    ask_tokens: tuple[int, ...]
    close_tokens: tuple[int, ...]
    stop_tokens: frozenset[int]

    def question(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """What is computed on a branch before the answer."""
        return tokens + self.ask_tokens

    def turn(self, question: tuple[int, ...], answer: tuple[int, ...]) -> tuple[int, ...]:
        """A committed turn; ``question`` as returned by the method of that name."""
        return question + answer + self.close_tokens


def prompt_template(profile: ModelProfile, model: LlamaModel) -> PromptTemplate:
    """Tokenize a profile's template. Raises ConfigError when a stop token is not one token."""
    template, encoder = profile.template, profile.encoder

    def tokens(text: str) -> tuple[int, ...]:
        return model.tokenize(text, parse_special=True)

    try:
        stop_tokens = frozenset(model.special_token(name) for name in template.stop_tokens)
    except ValueError as error:
        raise ConfigError(f"template.stop_tokens of model profile {profile.name!r}: {error}") from (
            error
        )
    return PromptTemplate(
        open_tokens=tokens(template.open),
        frame_shape=FrameShape(
            prefix=tokens(template.frame_prefix),
            suffix=tokens(template.frame_suffix),
            n_embeddings=encoder.n_tokens,
            n_embedding_positions=embedding_positions(encoder.n_tokens, encoder.grid),
            grid=encoder.grid,
        ),
        ask_tokens=tokens(template.ask),
        close_tokens=tokens(template.close),
        stop_tokens=stop_tokens,
    )
