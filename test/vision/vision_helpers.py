"""A stand-in encoder whose embeddings are a simple function of the pixels."""

from __future__ import annotations

import threading

import numpy as np

from edge_vlm_ros.vision.encoder import Embeddings, RgbImage


class FakeEncoder:
    """2 tokens of width 3, on 4x4 pixels: the mean colour and its negative.

    Pixel value 13 in the first place makes it raise. ``gate`` can hold it inside ``encode``.
    """

    backend = "fake"
    input_size = (4, 4)
    n_tokens = 2
    n_embd = 3

    def __init__(self, identity: bytes = b"fake") -> None:
        self.identity = identity
        self.encoded: list[int] = []
        self.threads: set[int] = set()
        self.closed = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def encode(self, rgb: RgbImage) -> Embeddings:
        self.entered.set()
        self.gate.wait(30)
        self.threads.add(threading.get_ident())
        self.encoded.append(int(rgb[0, 0, 0]))
        if rgb[0, 0, 0] == 13:
            raise RuntimeError("unlucky pixel")
        mean = rgb.reshape(-1, 3).mean(axis=0).astype(np.float32)
        return np.stack([mean, -mean])

    def close(self) -> None:
        self.closed += 1


def frame(value: int, size: tuple[int, int] = (4, 4)) -> RgbImage:
    """A frame of one grey."""
    return np.full((*size, 3), value, dtype=np.uint8)
