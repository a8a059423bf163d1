"""A vision encoder that ONNX Runtime runs on the CPU or an NVIDIA GPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..model_profile import EncoderProfile, OnnxBackend
from .encoder import Embeddings, RgbImage, check_embeddings, check_pixels
from .encoder_identity import encoder_identity
from .errors import EncoderError
from .onnx_runtime import check_declared, import_onnxruntime
from .pixels import PixelTable
from .profiled_encoder import ProfiledEncoder

if TYPE_CHECKING:
    import onnxruntime

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxEncoder(ProfiledEncoder):
    """The ``Encoder`` of a backend with ``type: onnx``."""

    def __init__(self, profile: EncoderProfile, backend: OnnxBackend, *, threads: int = 1) -> None:
        """Load the model and check that it is the one the profile describes.

        Args:
            profile: the encoder part of a model profile.
            backend: one of its backends.
            threads: threads that compute one frame.

        Raises:
            EncoderError: missing or damaged file, or a model whose input or output differs from
                the profile.
        """
        if threads < 1:
            raise EncoderError(f"an encoder needs at least 1 thread, not {threads}")
        self._profile, self._files = profile, backend
        self._pixels = PixelTable(profile)
        self._session: onnxruntime.InferenceSession | None = _open_session(backend, threads)
        shape = _input_shape(profile, backend)
        check_declared(self._session.get_inputs(), backend.input, shape, "input")
        check_declared(
            self._session.get_outputs(),
            backend.output,
            (1, profile.n_tokens, profile.n_embd),
            "output",
        )
        settings = {"provider": backend.provider, "runtime": import_onnxruntime().__version__}
        self._identity = encoder_identity(profile, backend, settings)
        self._backend = (
            f"ONNX Runtime, CPU, {threads} thread{'s' if threads > 1 else ''}"
            if backend.provider == "cpu"
            else f"ONNX Runtime, {backend.provider.upper()}"
        )

    def encode(self, rgb: RgbImage) -> Embeddings:
        """Encode uint8 [height, width, 3] to float32 [n_tokens, n_embd]; see ``Encoder``."""
        if self._session is None:
            raise EncoderError("the encoder has been closed; make a new one")
        check_pixels(rgb, self._profile.size)
        feed = {self._files.input: self._model_input(rgb)}
        try:
            (output,) = self._session.run([self._files.output], feed)
        except Exception as error:  # its exception classes share no base of their own
            raise EncoderError(f"ONNX Runtime could not encode a frame: {error}") from error
        return check_embeddings(output[0], self.n_tokens, self.n_embd)

    def close(self) -> None:
        """Free the session."""
        self._session = None

    def _model_input(self, rgb: RgbImage) -> npt.NDArray[np.float32]:
        if self._files.layout == "nchw":
            return self._pixels.channels_first(rgb)
        return self._pixels.channels_last(rgb)


def _open_session(backend: OnnxBackend, threads: int) -> onnxruntime.InferenceSession:
    if not backend.file.is_file():
        raise EncoderError(f"there is no encoder file {backend.file}; put it there")
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning workers would take the cores from the language engine between two frames.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    provider = _PROVIDERS[backend.provider]
    if provider not in onnxruntime.get_available_providers():
        raise EncoderError(
            f"this onnxruntime has no {provider}, only "
            f"{', '.join(onnxruntime.get_available_providers())}; install onnxruntime-gpu, or use "
            "provider cpu"
        )
    try:
        session = onnxruntime.InferenceSession(
            os.fspath(backend.file), sess_options=options, providers=[provider]
        )
    except Exception as error:  # its exception classes share no base of their own
        raise EncoderError(
            f"ONNX Runtime cannot load {backend.file}: {error}; the file is damaged or needs "
            "another version of onnxruntime"
        ) from error
    if session.get_providers()[0] != provider:  # it falls back to the CPU without a word
        raise EncoderError(
            f"ONNX Runtime could not start {provider} and would compute on the CPU: check the "
            "driver, or use provider cpu"
        )
    return session


def _input_shape(profile: EncoderProfile, backend: OnnxBackend) -> tuple[int, ...]:
    height, width = profile.size
    return (1, 3, height, width) if backend.layout == "nchw" else (1, height, width, 3)
