"""How the multimodal library cuts a picture up: image chunks, and the tokens that it puts between
them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp

from .encoder import RgbImage
from .errors import EncoderError
from .mtmd_log import recent_errors


@dataclass(frozen=True)
class TextChunk:
    """Tokens around images."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class ImageChunk:
    """A picture or a tile of it: ``n_tokens`` embeddings that take ``n_positions`` positions."""

    n_tokens: int
    n_positions: int


Chunk = TextChunk | ImageChunk


class Picture:
    """A picture as the library has preprocessed and cut it up; a context manager."""

    def __init__(self, context: int, rgb: RgbImage) -> None:
        """rgb: uint8 [height, width, 3]. Raises EncoderError when the library refuses it."""
        self._context = context
        self._chunks = mtmd_cpp.mtmd_input_chunks_init()
        pixels = np.ascontiguousarray(rgb)
        height, width, _ = pixels.shape
        pointer = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd_cpp.mtmd_bitmap_init(width, height, pointer)
        try:
            self._tokenize(bitmap)
        except EncoderError:
            self.close()
            raise
        finally:
            mtmd_cpp.mtmd_bitmap_free(bitmap)

    def _tokenize(self, bitmap: int) -> None:
        marker = mtmd_cpp.mtmd_default_marker()
        text = mtmd_cpp.mtmd_input_text(marker, len(marker), False, True)
        bitmaps = (ctypes.c_void_p * 1)(bitmap)
        status = mtmd_cpp.mtmd_tokenize(self._context, self._chunks, ctypes.byref(text), bitmaps, 1)
        if status != 0:
            raise EncoderError(f"llama.cpp cannot prepare a frame: {recent_errors()}")

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            mtmd_cpp.mtmd_input_chunks_free(chunks)

    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks in the order of the prompt."""
        return tuple(self._describe(chunk) for chunk in self._handles())

    def wants_two_way_attention(self) -> bool:
        """Whether embeddings of an image must see those that come after them."""
        return any(
            bool(mtmd_cpp.mtmd_decode_use_non_causal(self._context, chunk))
            for chunk in self._handles()
            if _kind(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_IMAGE
        )

    def encode(self, n_embd: int) -> Iterator[npt.NDArray[np.float32]]:
        """The embeddings of each image chunk, float32 [n_tokens, n_embd]; each is a view that the
        next one overwrites."""
        for chunk in self._handles():
            if _kind(chunk) != mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                continue
            if mtmd_cpp.mtmd_encode_chunk(self._context, chunk) != 0:
                raise EncoderError(f"llama.cpp could not encode a frame: {recent_errors()}")
            output = mtmd_cpp.mtmd_get_output_embd(self._context)
            n_tokens = mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk)
            yield np.ctypeslib.as_array(output, (n_tokens, n_embd))

    def positions(self, start: int = 0) -> npt.NDArray[np.int32]:
        """int32 [4, rows]: the positions of all rows when the first is at ``start``, in the
        sections time, y, x and a fourth, as batches of embeddings of M-RoPE models want them.
        Without M-RoPE the first section is all that counts."""
        rows: list[tuple[int, int, int, int]] = []
        for chunk in self._handles():
            described = self._describe(chunk)
            if isinstance(described, TextChunk):
                n = len(described.tokens)
                rows += [(p, p, p, 0) for p in range(start, start + n)]
                start += n
                continue
            image = mtmd_cpp.mtmd_input_chunk_get_tokens_image(chunk)
            places = (mtmd_cpp.mtmd_decoder_pos * described.n_tokens)()
            mtmd_cpp.mtmd_helper_image_get_decoder_pos(image, start, places)
            rows += [(place.t, place.y, place.x, place.z) for place in places]
            start += described.n_positions
        return np.asarray(rows, np.int32).T.copy()

    def _handles(self) -> Iterator[int]:
        for index in range(mtmd_cpp.mtmd_input_chunks_size(self._chunks)):
            yield mtmd_cpp.mtmd_input_chunks_get(self._chunks, index)

    def _describe(self, chunk: int) -> Chunk:
        if _kind(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_IMAGE:
            return ImageChunk(
                mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk),
                mtmd_cpp.mtmd_input_chunk_get_n_pos(chunk),
            )
        n = ctypes.c_size_t()
        tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return TextChunk(tuple(tokens[: n.value]))


def _kind(chunk: int) -> int:
    return int(mtmd_cpp.mtmd_input_chunk_get_type(chunk))
