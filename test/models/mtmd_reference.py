"""llama.cpp's own evaluation of a prompt with pictures: what the runtime must agree with.

It shares no code with the package: the language model with its weights, mtmd's tokenizer over the
whole prompt, and mtmd's helper that computes all chunks in one sequence.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp

Frame = npt.NDArray[np.uint8]
Logits = npt.NDArray[np.float32]
MARKER = mtmd_cpp.mtmd_default_marker().decode()
_Q8_0 = 8


class MtmdReference:
    """One sequence; ``evaluate`` begins it anew."""

    def __init__(self, language: Path, mmproj: Path, *, n_ctx: int = 1024) -> None:
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.n_gpu_layers, params.main_gpu = 0, -1
        params.split_mode = llama.LLAMA_SPLIT_MODE_NONE
        self._model = llama.llama_model_load_from_file(str(language).encode(), params)
        assert self._model
        self._vocab = llama.llama_model_get_vocab(self._model)
        self._n_vocab = llama.llama_vocab_n_tokens(self._vocab)
        context = llama.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = n_ctx, 512, 512
        context.n_threads = context.n_threads_batch = 1
        context.type_k = context.type_v = _Q8_0
        context.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context = llama.llama_init_from_model(self._model, context)
        assert self._context
        projector = mtmd_cpp.mtmd_context_params_default()
        projector.use_gpu, projector.n_threads, projector.print_timings = False, 1, False
        self._mtmd = mtmd_cpp.mtmd_init_from_file(str(mmproj).encode(), self._model, projector)
        assert self._mtmd
        self._n_past = llama.llama_pos(0)
        self.text_tokens: list[int] = []

    def close(self) -> None:
        mtmd_cpp.mtmd_free(self._mtmd)
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)

    def evaluate(self, prompt: str, frames: Sequence[Frame]) -> Logits:
        """The logits after a prompt with one MARKER for each frame, float32 [n_vocab]. All its
        tokens that are no image embeddings are in ``text_tokens`` afterwards."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        bitmaps = [_bitmap(frame) for frame in frames]
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        data = prompt.encode()
        text = mtmd_cpp.mtmd_input_text(data, len(data), False, True)
        array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
        status = mtmd_cpp.mtmd_tokenize(self._mtmd, chunks, ctypes.byref(text), array, len(bitmaps))
        assert status == 0
        self.text_tokens = _text_tokens(chunks)
        status = mtmd_cpp.mtmd_helper_eval_chunks(
            self._mtmd, self._context, chunks, 0, 0, 512, True, ctypes.byref(self._n_past)
        )
        assert status == 0
        mtmd_cpp.mtmd_input_chunks_free(chunks)
        for bitmap in bitmaps:
            mtmd_cpp.mtmd_bitmap_free(bitmap)
        return self._logits()

    def greedy(self, n: int, stop: Collection[int]) -> list[int]:
        """Go on after ``evaluate``: up to ``n`` tokens, without the one that stops."""
        tokens: list[int] = []
        for _ in range(n):
            token = int(self._logits().argmax())
            if token in stop or llama.llama_vocab_is_eog(self._vocab, token):
                break
            tokens.append(token)
            batch = llama.llama_batch_init(1, 0, 1)
            batch.n_tokens, batch.token[0], batch.pos[0] = 1, token, self._n_past.value
            batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 0, 1
            assert llama.llama_decode(self._context, batch) == 0
            llama.llama_batch_free(batch)
            self._n_past.value += 1
        return tokens

    def _logits(self) -> Logits:
        row = llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(row, (self._n_vocab,)).copy()


def _bitmap(frame: Frame) -> int:
    height, width, _ = frame.shape
    pixels = np.ascontiguousarray(frame)
    pointer = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    return mtmd_cpp.mtmd_bitmap_init(width, height, pointer)


def _text_tokens(chunks: int) -> list[int]:
    tokens: list[int] = []
    for index in range(mtmd_cpp.mtmd_input_chunks_size(chunks)):
        chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, index)
        if mtmd_cpp.mtmd_input_chunk_get_type(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT:
            n = ctypes.c_size_t()
            text = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
            tokens += text[: n.value]
    return tokens
