"""Opens the first backend of a model profile's encoder that works on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..model_profile import (
    EncoderBackend,
    EncoderProfile,
    MtmdBackend,
    OnnxBackend,
    QnnBackend,
    RknnBackend,
)
from .encoder import Encoder
from .errors import EncoderError
from .onnx_encoder import OnnxEncoder
from .self_test import SelfTestResult, self_test


@dataclass(frozen=True)
class OpenedEncoder:
    """``encoders`` are equal and each has one owner thread; ``refused`` says of the
    backends that were tried in vain why they are not used."""

    encoders: tuple[Encoder, ...]
    self_test: SelfTestResult
    refused: tuple[str, ...]

    def close(self) -> None:
        for encoder in self.encoders:
            encoder.close()


def open_encoder(
    profile: EncoderProfile, *, threads: int = 1, language: Path | None = None
) -> OpenedEncoder:
    """Try the backends in the order of the profile; the first that passes its self-test is used.

    Args:
        profile: the encoder part of a model profile.
        threads: CPU threads that compute one frame, for backends that run on the CPU.
        language: the file of the language model, for backends of type mtmd.

    Raises:
        EncoderError: no backend starts and computes right; the text has the reason of each.
    """
    refused: list[str] = []
    for backend in profile.backends:
        try:
            encoders = _open(profile, backend, threads, language)
        except EncoderError as error:
            refused.append(f"encoder {backend.type} is not used: {error}")
            continue
        opened = OpenedEncoder(encoders, _worst(encoders, profile.reference), tuple(refused))
        if opened.self_test.passed:
            return opened
        opened.close()
        refused.append(f"encoder {backend.type} is not used: {opened.self_test.message}")
    raise EncoderError("; ".join(refused))


def open_untested(profile: EncoderProfile, *, language: Path | None = None) -> Encoder:
    """The first backend that starts here, for making the reference of the self-test.

    Raises:
        EncoderError: no backend starts.
    """
    opened = open_encoder(profile.model_copy(update={"reference": None}), language=language)
    for encoder in opened.encoders[1:]:
        encoder.close()
    return opened.encoders[0]


def _worst(encoders: tuple[Encoder, ...], reference: Path | None) -> SelfTestResult:
    """The result of the first that fails, if one does."""
    results = [self_test(encoder, reference) for encoder in encoders]
    return next((result for result in results if not result.passed), results[0])


def _open(
    profile: EncoderProfile, backend: EncoderBackend, threads: int, language: Path | None
) -> tuple[Encoder, ...]:
    """Libraries that only boards have are imported here and not before."""
    if isinstance(backend, OnnxBackend):
        return (OnnxEncoder(profile, backend, threads=threads),)
    if isinstance(backend, QnnBackend):
        from .qnn_encoder import QnnEncoder

        return (QnnEncoder(profile, backend),)
    if isinstance(backend, RknnBackend):
        from .rknn_encoder import open_contexts

        return open_contexts(profile, backend)
    if isinstance(backend, MtmdBackend):
        from .mtmd_encoder import MtmdEncoder

        if language is None:
            raise EncoderError("an mtmd encoder needs the language model's file; name it too")
        return (MtmdEncoder(profile, backend, language, threads=threads),)
    raise EncoderError(f"backend {backend.type} is unknown")
