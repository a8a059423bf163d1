"""Random tensors for a GGUF file."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

_BLOCK = 32  # weights that share a scale in Q8_0


class Weights:
    """Draws tensors and hands them to a GGUF writer. ``quantise`` makes matrices Q8_0 whose rows
    are made of whole blocks; everything else is float32."""

    def __init__(self, writer: Any, seed: int, *, quantise: bool = False) -> None:
        self._writer = writer
        self._rng = np.random.default_rng(seed)
        self._quantise = quantise

    def linear(self, name: str, n_out: int, n_in: int, *, bias: bool = True) -> None:
        """``name``.weight and ``name``.bias."""
        self.matrix(f"{name}.weight", n_out, n_in)
        if bias:
            self.normal(f"{name}.bias", n_out)

    def matrix(self, name: str, *shape: int) -> None:
        """A tensor that keeps the variance of what it is multiplied with along its last axis."""
        values = self._draw(shape) * np.float32(shape[-1] ** -0.5)
        if self._quantise and shape[-1] % _BLOCK == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            self._writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self._writer.add_tensor(name, values)

    def kernel(self, name: str, n_out: int, n_in: int, side: int) -> None:
        """A convolution kernel [n_out, n_in, side, side] in float16: llama.cpp aborts the process
        at depthwise ones in float32."""
        scale = np.float32((n_in * side * side) ** -0.5)
        values = self._draw((n_out, n_in, side, side)) * scale
        self._writer.add_tensor(name, values.astype(np.float16))

    def normal(self, name: str, *shape: int, scale: float = 0.1) -> None:
        self._writer.add_tensor(name, self._draw(shape) * np.float32(scale))

    def norm(self, name: str, n: int, *, bias: bool = True) -> None:
        """Gains around one, and small offsets."""
        self._writer.add_tensor(f"{name}.weight", 1 + self._draw((n,)) * np.float32(0.1))
        if bias:
            self.normal(f"{name}.bias", n)

    def _draw(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        return self._rng.standard_normal(shape, dtype=np.float32)
