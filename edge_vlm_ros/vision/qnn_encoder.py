"""A vision encoder on the NPU of Qualcomm's processors, for example the QCS6490."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..model_profile import EncoderProfile, QnnBackend
from . import qnn_cache
from .encoder import Embeddings, RgbImage, check_embeddings, check_pixels
from .encoder_identity import encoder_identity
from .errors import EncoderError
from .onnx_runtime import check_declared
from .pixels import PixelTable
from .profiled_encoder import ProfiledEncoder
from .qnn_runtime import HtpTarget, QnnRuntime, is_compiled

if TYPE_CHECKING:
    import onnxruntime


class QnnEncoder(ProfiledEncoder):
    """The ``Encoder`` of a backend with ``type: qnn``. Every operation runs on the NPU."""

    def __init__(
        self, profile: EncoderProfile, backend: QnnBackend, *, cache: Path | None = None
    ) -> None:
        """Compile the model for the NPU, or open what was compiled at an earlier start.

        Args:
            profile: the encoder part of a model profile.
            backend: one of its backends; the file is a QDQ model or one compiled already.
            cache: folder for compiled models; by default in the user's cache folder.

        Raises:
            EncoderError: no NPU, driver, library or permission, a missing or damaged file, one
                that the NPU cannot run as a whole, or one that differs from the profile.
        """
        if not backend.file.is_file():
            raise EncoderError(
                f"there is no encoder file {backend.file}; put it there, or make it with "
                "`python -m tools.convert_encoder qdq`"
            )
        self._profile, self._files = profile, backend
        self._pixels = PixelTable(profile)
        runtime = QnnRuntime()
        target = HtpTarget(backend.soc_model, backend.htp_arch)
        if is_compiled(backend.file):
            session = runtime.open(backend.file, target)
        else:
            folder = cache or qnn_cache.default_folder()
            session = qnn_cache.open_compiled(runtime, backend.file, target, folder)
        shape = (1, 3, *profile.size)
        check_declared(session.get_inputs(), backend.input, shape, "input")
        check_declared(
            session.get_outputs(), backend.output, (1, profile.n_tokens, profile.n_embd), "output"
        )
        self._session: onnxruntime.InferenceSession | None = session
        where = "emulator" if runtime.emulated else "npu"
        settings = {"runtime": runtime.versions, "where": where}
        self._identity = encoder_identity(profile, backend, settings)
        self._backend = f"Qualcomm HTP v{backend.htp_arch}" + (
            ", emulated on x86-64" if runtime.emulated else ""
        )

    def encode(self, rgb: RgbImage) -> Embeddings:
        """Encode uint8 [height, width, 3] to float32 [n_tokens, n_embd]; see ``Encoder``."""
        if self._session is None:
            raise EncoderError("the encoder has been closed; make a new one")
        check_pixels(rgb, self._profile.size)
        feed = {self._files.input: self._pixels.channels_first(rgb)}
        try:
            (output,) = self._session.run([self._files.output], feed)
        except Exception as error:  # its exception classes share no base of their own
            raise EncoderError(f"the NPU could not encode a frame: {error}") from error
        return check_embeddings(output[0], self.n_tokens, self.n_embd)

    def close(self) -> None:
        """Free the session."""
        self._session = None
