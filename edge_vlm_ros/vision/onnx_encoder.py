"""A vision encoder that ONNX Runtime runs on the CPU."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..model_profile import EncoderProfile, ProfileError, sha256_file
from .encoder import Embeddings, RgbImage, check_embeddings, check_pixels
from .errors import EncoderError

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "CPUExecutionProvider"


class OnnxEncoder:
    """The ``Encoder`` of a model profile with ``encoder.type: onnx``."""

    def __init__(self, profile: EncoderProfile, *, threads: int = 1) -> None:
        """Load the model and check that it is the one the profile describes.

        Args:
            profile: the encoder part of a model profile.
            threads: threads that compute one frame.

        Raises:
            EncoderError: missing or damaged file, or a model whose input or output differs from
                the profile.
        """
        if threads < 1:
            raise EncoderError(f"an encoder needs at least 1 thread, not {threads}")
        self._profile = profile
        self._table = _pixel_table(profile)
        self._session: onnxruntime.InferenceSession | None = _open_session(profile, threads)
        _check_declared(self._session.get_inputs(), profile.input, _input_shape(profile), "input")
        _check_declared(
            self._session.get_outputs(),
            profile.output,
            (1, profile.n_tokens, profile.n_embd),
            "output",
        )
        self._identity = _identity(profile)
        self._backend = f"ONNX Runtime, CPU, {threads} thread{'s' if threads > 1 else ''}"

    @property
    def identity(self) -> bytes:
        """32-byte digest of the model file, its preprocessing and the runtime's version."""
        return self._identity

    @property
    def input_size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self._profile.size

    @property
    def n_tokens(self) -> int:
        """Rows of the embeddings."""
        return self._profile.n_tokens

    @property
    def n_embd(self) -> int:
        """Columns of the embeddings."""
        return self._profile.n_embd

    @property
    def backend(self) -> str:
        """What runs the encoder, for people."""
        return self._backend

    def encode(self, rgb: RgbImage) -> Embeddings:
        """Encode uint8 [height, width, 3] to float32 [n_tokens, n_embd]; see ``Encoder``."""
        if self._session is None:
            raise EncoderError("the encoder has been closed; make a new one")
        check_pixels(rgb, self._profile.size)
        feed = {self._profile.input: self._model_input(rgb)}
        try:
            (output,) = self._session.run([self._profile.output], feed)
        except Exception as error:  # its exception classes share no base of their own
            raise EncoderError(f"ONNX Runtime could not encode a frame: {error}") from error
        return check_embeddings(output[0], self.n_tokens, self.n_embd)

    def close(self) -> None:
        """Free the session."""
        self._session = None

    def _model_input(self, rgb: RgbImage) -> npt.NDArray[np.float32]:
        height, width = self._profile.size
        channels_first = np.empty((3, height, width), dtype=np.float32)
        for channel in range(3):
            np.take(self._table[channel], rgb[:, :, channel], out=channels_first[channel])
        if self._profile.layout == "nchw":
            return channels_first[np.newaxis]
        return np.ascontiguousarray(channels_first.transpose(1, 2, 0))[np.newaxis]


def _pixel_table(profile: EncoderProfile) -> npt.NDArray[np.float32]:
    """float32 [3, 256]: the input value of each pixel value, correctly rounded."""
    pixels = np.arange(256, dtype=np.float64)
    rows = [
        (pixels * profile.scale - mean) / std
        for mean, std in zip(profile.mean, profile.std, strict=True)
    ]
    return np.asarray(rows, dtype=np.float32)


def _open_session(profile: EncoderProfile, threads: int) -> onnxruntime.InferenceSession:
    if not profile.file.is_file():
        raise EncoderError(f"encoder.file names {profile.file}, which is not a file; put it there")
    # Read by the library when it is imported: 1.31 and later would send usage data.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise EncoderError(
            "onnxruntime is not installed; install the Python requirements of edge_vlm_ros"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning workers would take the cores from the language engine between two frames.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            os.fspath(profile.file), sess_options=options, providers=[_PROVIDER]
        )
    except Exception as error:  # its exception classes share no base of their own
        raise EncoderError(
            f"ONNX Runtime cannot load {profile.file}: {error}; the file is damaged or needs "
            "another version of onnxruntime"
        ) from error


def _input_shape(profile: EncoderProfile) -> tuple[int, ...]:
    height, width = profile.size
    return (1, 3, height, width) if profile.layout == "nchw" else (1, height, width, 3)


def _check_declared(tensors: list[Any], name: str, expected: tuple[int, ...], field: str) -> None:
    """Compare a tensor that the model declares with the profile; symbolic sizes match anything."""
    by_name = {tensor.name: tensor for tensor in tensors}
    if name not in by_name:
        raise EncoderError(
            f"the model has no {field} named {name!r}, only {sorted(by_name)}; "
            f"correct encoder.{field} in the model profile"
        )
    if field == "input" and len(tensors) != 1:
        raise EncoderError(
            f"the model has {len(tensors)} inputs {sorted(by_name)}; only encoders with the "
            "picture as their one input can be used"
        )
    tensor = by_name[name]
    if tensor.type != "tensor(float)":
        raise EncoderError(
            f"the model's {field} {name!r} is {tensor.type}, but a float32 tensor is needed; "
            "export the model with float32 input and output"
        )
    declared = tuple(tensor.shape)
    fits = len(declared) == len(expected) and all(
        not isinstance(have, int) or have == want
        for have, want in zip(declared, expected, strict=False)
    )
    if not fits:
        hint = "size or layout" if field == "input" else "n_tokens or n_embd"
        raise EncoderError(
            f"the model's {field} {name!r} has the shape {list(declared)}, but the model profile "
            f"says {list(expected)}; correct encoder.{hint}"
        )


def _identity(profile: EncoderProfile) -> bytes:
    import onnxruntime

    try:
        file_digest = sha256_file(profile.file)
    except ProfileError as error:
        raise EncoderError(str(error)) from error
    settings = {
        "encoder": "onnx",
        "file": file_digest,
        "input": profile.input,
        "output": profile.output,
        "layout": profile.layout,
        "size": profile.size,
        "resize": profile.resize,
        "pad_value": profile.pad_value,
        "scale": profile.scale,
        "mean": profile.mean,
        "std": profile.std,
        "provider": _PROVIDER,
        "runtime": onnxruntime.__version__,
    }
    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=32).digest()
