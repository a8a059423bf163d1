"""A loaded language model and its vocabulary."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import llama_cpp.llama_cpp as llama

from . import native_log
from .config import KvType
from .errors import ModelLoadError, UnsupportedModelError

# enum llama_rope_type: several positions per token
_MULTI_SECTION_ROPE = (8, 24, 40)
# enum llama_ftype: weights whose products do not depend on the shape of the batch
BATCH_INVARIANT_FTYPES = {2: "Q4_0", 7: "Q8_0"}

Progress = Callable[[float], None]
_backend_lock = threading.Lock()
_backend_ready = False


class LlamaModel:
    """Weights on the CPU and their vocabulary.

    The vocabulary's methods may be called from any thread. Raises ModelLoadError when the file
    cannot be loaded and UnsupportedModelError when its state cannot be forked at any position.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        _init_backend()
        if not path.is_file():
            raise ModelLoadError(f"there is no model file {path}")
        self.path = path
        self.handle = _load(path, progress)
        try:
            self._refuse_unsupported()
        except UnsupportedModelError:
            self.close()
            raise
        self.vocab = llama.llama_model_get_vocab(self.handle)
        self.n_vocab: int = llama.llama_vocab_n_tokens(self.vocab)
        self.n_embd: int = llama.llama_model_n_embd(self.handle)
        self.n_ctx_train: int = llama.llama_model_n_ctx_train(self.handle)
        self.n_bytes: int = llama.llama_model_size(self.handle)
        self.ftype: int = llama.llama_model_ftype(self.handle)
        self.description = self._description()
        self._pieces: dict[int, bytes] = {}

    def _description(self) -> str:
        """Architecture, size and type of weights, e.g. ``qwen3 0.6B Q8_0``."""
        buffer = ctypes.create_string_buffer(128)
        llama.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def metadata(self, key: str) -> str | None:
        """A value of the GGUF header as text, or None."""
        buffer = ctypes.create_string_buffer(256)
        n = llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None

    def tokenize(self, text: str, *, parse_special: bool) -> tuple[int, ...]:
        """Token ids of ``text``, no BOS added. With ``parse_special`` False, the names of special
        tokens in it are plain text: use that for everything a user wrote."""
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 8
        ids = (llama.llama_token * capacity)()
        n = llama.llama_tokenize(self.vocab, data, len(data), ids, capacity, False, parse_special)
        if n < 0:
            raise ValueError(f"llama.cpp cannot tokenize this text of {len(data)} bytes")
        return tuple(ids[:n])

    def special_token(self, name: str) -> int:
        """The id of a special token given by its text. Raises ValueError when it is not one."""
        ids = self.tokenize(name, parse_special=True)
        if len(ids) != 1:
            raise ValueError(f"{name!r} is not one token of the model {self.path.name}")
        return ids[0]

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; control tokens stand for none."""
        piece = self._pieces.get(token)
        if piece is None:
            buffer = ctypes.create_string_buffer(256)
            n = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            if n < 0:  # a longer one: this is minus its length
                buffer = ctypes.create_string_buffer(-n)
                n = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            piece = buffer.raw[: max(n, 0)]
            self._pieces[token] = piece
        return piece

    def is_batch_invariant(self, kv_type: KvType) -> bool:
        """Whether results are bit-equal for every batch composition, chunk size, cell placement
        and thread count on the CPU: measured for Q8_0 and Q4_0 weights with a q8_0 KV cache."""
        return kv_type == "q8_0" and self.ftype in BATCH_INVARIANT_FTYPES

    def is_end(self, token: int) -> bool:
        """Whether the vocabulary marks the token as the end of a generation."""
        return bool(llama.llama_vocab_is_eog(self.vocab, token))

    def close(self) -> None:
        """Free the weights. Closing again changes nothing."""
        handle, self.handle = self.handle, None
        llama.llama_model_free(handle)

    def _refuse_unsupported(self) -> None:
        handle = self.handle
        reason = ""
        if llama.llama_model_is_recurrent(handle) or llama.llama_model_is_hybrid(handle):
            reason = "it keeps a recurrent state, which cannot be forked at an older version"
        elif llama.llama_model_is_diffusion(handle) or llama.llama_model_has_encoder(handle):
            reason = "it is not a plain decoder"
        elif llama.llama_model_n_swa(handle) > 0:
            reason = "its attention has a sliding window, so older versions lose their cells"
        elif llama.llama_model_rope_type(handle) in _MULTI_SECTION_ROPE:
            reason = "its positions have several sections (M-RoPE), which is not supported yet"
        elif llama.llama_model_n_embd_inp(handle) != llama.llama_model_n_embd(handle):
            reason = "its image embeddings are wider than its layers (deepstack)"
        if reason:
            raise UnsupportedModelError(
                f"model {self.path.name} cannot be used: {reason}. Models with full attention "
                "such as Qwen2, Qwen2.5, Qwen3 and SmolLM2 work"
            )


def _load(path: Path, progress: Progress | None) -> object:
    @llama.llama_progress_callback  # type: ignore[untyped-decorator]
    def report(fraction: float, _user_data: object) -> bool:
        if progress is not None:
            progress(fraction)
        return True

    params = llama.llama_model_default_params()
    # n_gpu_layers = 0 alone would still hand large batches to a GPU of the same build.
    params.n_gpu_layers = 0
    params.split_mode = llama.LLAMA_SPLIT_MODE_NONE
    params.main_gpu = -1
    params.progress_callback = report
    native_log.recent_errors()
    handle = llama.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        raise ModelLoadError(
            f"cannot load {path}: {native_log.recent_errors()}. Is it a complete GGUF file of an "
            "architecture this llama.cpp knows?"
        )
    return handle


def _init_backend() -> None:
    global _backend_ready
    with _backend_lock:
        if not _backend_ready:
            native_log.install()
            llama.llama_backend_init()
            _backend_ready = True
