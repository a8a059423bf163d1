"""What the multimodal library needs of the language model: everything but its weights."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from ..gguf_file import GgufError, GgufFile
from ..token_rows import token_rows
from .errors import EncoderError

_LOAD_MODE_NONE = 0


class LanguageModel:
    """A language model without weights: its vocabulary, sizes and rows of token embeddings.

    Raises EncoderError when llama.cpp cannot read the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise EncoderError(f"there is no language model {path}; put it there")
        try:
            self._file = GgufFile(path)
        except GgufError as error:
            raise EncoderError(str(error)) from error
        self.architecture = self._file.architecture
        if self.architecture == "clip":
            raise EncoderError(f"{path} is a projector file, but a language model is needed")
        llama.llama_backend_init()
        self.handle: int | None = _load(path)
        self.n_embd: int = llama.llama_model_n_embd(self.handle)
        self.n_embd_frame: int = llama.llama_model_n_embd_inp(self.handle)
        """Values of a row of a frame: more than a token has in models with deepstack."""

    def token_rows(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """float32 [len(tokens), n_embd_frame]: what the layers get for these tokens.

        Raises EncoderError when an embedding would not be computed like its token, or is not in
        the file.
        """
        try:
            return token_rows(self._file, tokens, self.n_embd_frame)
        except GgufError as error:
            raise EncoderError(str(error)) from error

    def name_of(self, token: int) -> str:
        """A token's text, special tokens included."""
        vocabulary = llama.llama_model_get_vocab(self.handle)
        buffer = ctypes.create_string_buffer(256)
        n = llama.llama_token_to_piece(vocabulary, token, buffer, len(buffer), 0, True)
        return buffer.raw[: max(n, 0)].decode("utf-8", "replace")

    def close(self) -> None:
        """Free it, after the multimodal context. Closing again changes nothing."""
        handle, self.handle = self.handle, None
        if handle is not None:
            llama.llama_model_free(handle)


def _load(path: Path) -> int:
    params = llama.llama_model_default_params()
    params.no_alloc = True
    params.load_mode = _LOAD_MODE_NONE
    params.use_extra_bufts = False
    params.split_mode = llama.LLAMA_SPLIT_MODE_NONE
    params.main_gpu = -1
    params.n_gpu_layers = 0
    handle: int | None = llama.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        raise EncoderError(
            f"llama.cpp cannot load {path}; is it a complete GGUF file of an architecture this "
            "llama.cpp knows? The log has its reason"
        )
    return handle
