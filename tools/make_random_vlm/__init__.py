"""Vision-language models cut down to a few kilobytes of random weights, one for each architecture:
what a real model's files look like to llama.cpp, without a real model."""

from .architectures import ARCHITECTURES, RandomVlm

__all__ = ["ARCHITECTURES", "RandomVlm"]
