"""A vision encoder that llama.cpp's multimodal library runs from a projector file (mmproj)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp

from ..gguf_file import GgufError, GgufFile
from ..history import Grid
from ..model_profile import EncoderProfile, MtmdBackend
from . import mtmd_log
from .encoder import Embeddings, RgbImage, check_embeddings, check_pixels
from .encoder_identity import encoder_identity
from .errors import EncoderError
from .mtmd_chunks import Chunk, ImageChunk, Picture, TextChunk
from .mtmd_ggml import find_device
from .mtmd_language import LanguageModel
from .profiled_encoder import ProfiledEncoder

_ELSEWHERE = 7


class MtmdEncoder(ProfiledEncoder):
    """The ``Encoder`` of a backend with ``type: mtmd``.

    The library preprocesses a frame, may cut it into tiles, and puts tokens of the language model
    around and between them. A frame is all of that in one block of rows: the image embeddings, and
    the token embeddings of those tokens. What stands in ``frame_prefix`` and ``frame_suffix`` of
    the template comes before and after it.
    """

    def __init__(
        self, profile: EncoderProfile, backend: MtmdBackend, language: Path, *, threads: int = 1
    ) -> None:
        """Load the projector and check that it gives what the profile describes.

        Args:
            profile: the encoder part of a model profile.
            backend: one of its backends.
            language: the language model's file; only its vocabulary, sizes and the embeddings of
                a few tokens are read.
            threads: CPU threads that compute one frame.

        Raises:
            EncoderError: missing, damaged or mismatched files, other numbers than the profile's, a
                device that does not exist, or a model whose frames cannot be a block of rows.
        """
        if threads < 1:
            raise EncoderError(f"an encoder needs at least 1 thread, not {threads}")
        self._profile = profile
        self._context: int | None = None
        device = find_device(backend.device)
        _check_projector(backend.file)
        self._language = LanguageModel(language)
        try:
            self._check_width()
            self._context = _open(backend.file, self._language, device, threads)
            self._inspect()
            self._check_rows()
        except EncoderError:
            self.close()
            raise
        self._identity = encoder_identity(
            profile,
            backend,
            {
                "runtime": llama_cpp.__version__,
                "tokens": hashlib.sha256(self._token_rows.tobytes()).hexdigest(),
            },
        )
        place = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
        self._backend = f"llama.cpp mtmd, {backend.device if device else place}"

    @property
    def n_positions(self) -> int:
        """How far a frame moves the position of what follows; ``n_tokens`` without M-RoPE."""
        return sum(
            len(chunk.tokens) if isinstance(chunk, TextChunk) else chunk.n_positions
            for chunk in self._chunks
        )

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        """int32 [4, n_tokens]: positions of the rows relative to the first, in the sections time,
        y, x and a fourth; without M-RoPE the first is all that counts."""
        return self._positions

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """What a frame consists of, in order; the same for every frame."""
        return self._chunks

    def encode(self, rgb: RgbImage) -> Embeddings:
        """Encode uint8 [height, width, 3] to float32 [n_tokens, n_embd]; see ``Encoder``."""
        if self._context is None:
            raise EncoderError("the encoder has been closed; make a new one")
        check_pixels(rgb, self._profile.size)
        result = np.empty((self.n_tokens, self.n_embd), np.float32)
        with Picture(self._context, rgb) as picture:
            if picture.chunks() != self._chunks:
                raise EncoderError(
                    "llama.cpp cut this frame otherwise than the first one, though its size is the "
                    "same; use another projector"
                )
            embeddings = picture.encode(self.n_embd)
            row = n_text = 0
            for chunk in self._chunks:
                if isinstance(chunk, TextChunk):
                    n = len(chunk.tokens)
                    result[row : row + n] = self._token_rows[n_text : n_text + n]
                    n_text += n
                else:
                    n = chunk.n_tokens
                    result[row : row + n] = next(embeddings)
                row += n
        return check_embeddings(result, self.n_tokens, self.n_embd)

    def close(self) -> None:
        """Free the projector and the vocabulary. Closing again changes nothing."""
        context, self._context = self._context, None
        if context is not None:
            mtmd_cpp.mtmd_free(context)
        self._language.close()

    def _check_width(self) -> None:
        if self._language.n_embd_frame != self.n_embd:
            raise EncoderError(
                f"{self._language.path.name} takes frames of width {self._language.n_embd_frame}, "
                f"but the model profile says {self.n_embd}; correct encoder.n_embd"
            )

    def _inspect(self) -> None:
        """Find out what a frame consists of; black pixels will do."""
        assert self._context is not None
        with Picture(self._context, np.zeros((*self.input_size, 3), np.uint8)) as picture:
            self._chunks = picture.chunks()
            if picture.wants_two_way_attention():
                raise EncoderError(
                    f"model {self._language.path.name} cannot be used: within an image its "
                    "attention looks forward too (non-causal), which a context that other streams "
                    "use at the same time cannot do"
                )
            self._positions = picture.positions()
            moved = picture.positions(_ELSEWHERE)
        if not np.array_equal(moved[:3], self._positions[:3] + _ELSEWHERE):
            raise EncoderError(
                f"model {self._language.path.name} cannot be used: the positions of its images "
                "are counted from the picture's corner wherever it stands (XD-RoPE), so a frame "
                "cannot be reused at another place"
            )
        tokens = [
            token
            for chunk in self._chunks
            if isinstance(chunk, TextChunk)
            for token in chunk.tokens
        ]
        if -1 in tokens:
            raise EncoderError(
                f"{self._language.path.name} lacks tokens that this projector puts around images; "
                "use the mmproj file that was published with the language model"
            )
        self._token_rows = self._language.token_rows(tokens)

    def _check_rows(self) -> None:
        n_images = [chunk.n_tokens for chunk in self._chunks if isinstance(chunk, ImageChunk)]
        n_rows = sum(n_images) + len(self._token_rows)
        if n_rows != self.n_tokens:
            raise EncoderError(
                f"this projector makes {n_rows} tokens of a frame of {self.input_size} pixels "
                f"({sum(n_images)} in {len(n_images)} images, {len(self._token_rows)} around "
                f"them), but the model profile says {self.n_tokens}; set encoder.n_tokens to "
                f"{n_rows}"
            )
        if not mtmd_cpp.mtmd_decode_use_mrope(self._context):
            if self._profile.grid is not None:
                raise EncoderError(f"{self._language.path.name} has no M-RoPE; remove encoder.grid")
            return
        grid = _grid(self._chunks, self._positions)
        fits = grid is not None and np.array_equal(grid.positions(), self._positions)
        if grid is None or not fits or grid.n_positions != self.n_positions:
            raise EncoderError(
                f"model {self._language.path.name} cannot be used: the positions of a frame's "
                f"{n_rows} tokens (M-RoPE) are not those of one image with text around it"
            )
        if self._profile.grid != grid:
            raise EncoderError(
                f"the positions of {self._language.path.name} have rows and columns (M-RoPE); set "
                f"encoder.grid to {list(grid)}"
            )


def _grid(chunks: Sequence[Chunk], positions: npt.NDArray[np.int32]) -> Grid | None:
    """How one image lies; None when there are more or fewer."""
    images = [i for i, chunk in enumerate(chunks) if isinstance(chunk, ImageChunk)]
    if len(images) != 1:
        return None
    around = (chunks[: images[0]], chunks[images[0] + 1 :])
    before, after = (
        sum(len(chunk.tokens) for chunk in part if isinstance(chunk, TextChunk)) for part in around
    )
    image = positions[:, before : positions.shape[1] - after]
    rows, columns = (int(np.ptp(image[section])) + 1 for section in (1, 2))
    return Grid(rows, columns, before, after)


def _check_projector(path: Path) -> None:
    """Refuse what the native library would answer with an abort or with an obscure text."""
    try:
        header = GgufFile(path)
    except GgufError as error:
        raise EncoderError(str(error)) from error
    if header.architecture != "clip":
        raise EncoderError(
            f"{path} is no projector file but a model of architecture {header.architecture!r}; the "
            "projector of a model is a file of its own, often named mmproj-*.gguf"
        )
    if not header.flag("clip.has_vision_encoder"):
        raise EncoderError(
            f"{path} has no vision encoder (audio only); use the projector for images"
        )
    if header.text("clip.projector_type") == "pixtral":
        raise EncoderError(
            f"{path} is a projector of type pixtral: llama.cpp computes the separators of its "
            "rows from memory that nobody has written, and in some processes they are nan"
        )


def _open(path: Path, language: LanguageModel, device: int | None, threads: int) -> int:
    mtmd_log.install()
    params = mtmd_cpp.mtmd_context_params_default()
    params.use_gpu = device is not None
    params.device = device
    params.print_timings = False
    params.n_threads = threads
    # Memory for the largest picture that the projector allows; ours have one size.
    params.warmup = False
    mtmd_log.recent_errors()
    context: int | None = mtmd_cpp.mtmd_init_from_file(os.fsencode(path), language.handle, params)
    if not context:
        raise EncoderError(
            f"llama.cpp cannot use {path} with {language.path.name}: {mtmd_log.recent_errors()}; "
            "use the mmproj file that was published with the language model"
        )
    return context
