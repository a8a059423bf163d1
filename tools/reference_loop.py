"""The plainest loop over llama.cpp and ONNX Runtime that answers questions about frames.

It shares no code with the runtime. Tests and benchmarks compare the runtime's answers and speed
with it: one sequence, one piece after the other, greedy, nothing concurrent.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt
import onnxruntime

_GGML_TYPE = {"f32": 0, "f16": 1, "q8_0": 8}
_silent = llama.llama_log_callback(lambda level, text, user_data: None)


@dataclass(frozen=True)
class PromptFormat:
    """The text around frames, questions and answers (models/demo/README.md)."""

    open: str = "<|im_start|>user\n"
    frame: tuple[str, str] = ("<|vision_start|>", "<|vision_end|>\n")
    ask: str = "<|im_end|>\n<|im_start|>assistant\n"
    close: str = "<|im_end|>\n<|im_start|>user\n"
    stop: str = "<|im_end|>"


class ReferenceLoop:
    """A history of frames and committed turns in one sequence, asked without a trace.

    gguf: the language model. encoder: ONNX file with a uint8-scaled `image` [1, 3, H, W] in [0, 1]
    and embeddings [1, n_tokens, n_embd]; None where only `add_embeddings` is used.
    Raises FileNotFoundError, or RuntimeError when llama.cpp refuses the model or the context.
    """

    def __init__(
        self,
        gguf: str | Path,
        encoder: str | Path | None = None,
        *,
        n_threads: int = 1,
        n_ctx: int = 4096,
        n_batch: int = 512,
        kv_type: str = "q8_0",
        prompt: PromptFormat | None = None,
    ) -> None:
        for path in (gguf, encoder):
            if path is not None and not Path(path).is_file():
                raise FileNotFoundError(path)
        self._prompt = prompt or PromptFormat()
        self._session = None if encoder is None else _open_encoder(encoder, n_threads)
        llama.llama_backend_init()
        llama.llama_log_set(_silent, None)
        model_params = llama.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self._model = llama.llama_model_load_from_file(str(gguf).encode(), model_params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, n_batch
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = _GGML_TYPE[kv_type]
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.kv_unified = True
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {n_ctx} cells")
        self._vocab = llama.llama_model_get_vocab(self._model)
        self._n_vocab: int = llama.llama_vocab_n_tokens(self._vocab)
        self.n_embd: int = llama.llama_model_n_embd(self._model)
        self._n_batch = n_batch
        (self._stop,) = self.tokenize(self._prompt.stop, special=True)
        self.n_past = 0
        self.reset()

    def close(self) -> None:
        """Free the native memory; the loop is unusable afterwards."""
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)

    # ---- the history

    def reset(self) -> None:
        """Forget everything; only the opening text stays."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        self.n_past = 0
        self._eval_tokens(self.tokenize(self._prompt.open, special=True))

    def encode(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """uint8 [H, W, 3] of the encoder's size -> float32 [n_tokens, n_embd]."""
        if self._session is None:
            raise RuntimeError("this loop was made without an encoder")
        image = rgb.transpose(2, 0, 1)[None].astype(np.float32) / 255
        name = self._session.get_inputs()[0].name
        embeddings: npt.NDArray[np.float32] = self._session.run(None, {name: image})[0][0]
        return embeddings

    def add_frame(self, rgb: npt.NDArray[np.uint8]) -> None:
        """Append one camera frame, uint8 [H, W, 3] RGB of the encoder's size."""
        self.add_embeddings(self.encode(rgb))

    def add_embeddings(self, embeddings: npt.NDArray[np.float32]) -> None:
        """Append one frame given by its embeddings, float32 [n_tokens, n_embd]."""
        before, after = self._prompt.frame
        self._eval_tokens(self.tokenize(before, special=True))
        self._eval_embeddings(embeddings)
        self._eval_tokens(self.tokenize(after, special=True))

    def commit(self, question: str, answer: str) -> None:
        """Append a question and its answer."""
        self._eval_tokens(self._question(question))
        close = self.tokenize(self._prompt.close, special=True)
        self._eval_tokens(self.tokenize(answer) + close)

    # ---- asking

    def ask(self, question: str, max_tokens: int = 96) -> tuple[list[int], str]:
        """The greedy answer (token ids, text); the history is as before afterwards."""
        tokens = list(self.generate(question, max_tokens))
        return tokens, self.detokenize(tokens)

    def generate(
        self, question: str, max_tokens: int, *, ignore_stop: bool = False
    ) -> Generator[int, None, None]:
        """Yield the tokens of the greedy answer one by one. Run it to its end or close it.

        ignore_stop: go on after the stop token (to measure speed with random weights).
        """
        start = self.n_past
        try:
            self._eval_tokens(self._question(question))
            for _ in range(max_tokens):
                token = int(self._last_logits().argmax())
                if token == self._stop and not ignore_stop:
                    return
                yield token
                self._eval_tokens([token])
        finally:
            llama.llama_memory_seq_rm(llama.llama_get_memory(self._context), 0, start, -1)
            self.n_past = start

    def _question(self, question: str) -> list[int]:
        return self.tokenize(question) + self.tokenize(self._prompt.ask, special=True)

    # ---- llama.cpp

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Token ids; `special`: markers such as <|im_end|> are single tokens, not plain text."""
        data = text.encode()
        buffer = (llama.llama_token * (len(data) + 8))()
        n = llama.llama_tokenize(self._vocab, data, len(data), buffer, len(buffer), False, special)
        if n < 0:
            raise RuntimeError(f"llama.cpp cannot tokenize {text!r}")
        return list(buffer[:n])

    def detokenize(self, tokens: list[int]) -> str:
        piece = ctypes.create_string_buffer(256)
        data = b""
        for token in tokens:
            n = llama.llama_token_to_piece(self._vocab, token, piece, len(piece), 0, False)
            data += piece.raw[: max(n, 0)]
        return data.decode("utf-8", "replace")

    def _last_logits(self) -> npt.NDArray[np.float32]:
        logits = llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (self._n_vocab,))

    def _eval_tokens(self, tokens: list[int]) -> None:
        for start in range(0, len(tokens), self._n_batch):
            part = tokens[start : start + self._n_batch]
            batch = llama.llama_batch_init(len(part), 0, 1)
            for i, token in enumerate(part):
                batch.token[i] = token
            self._decode(batch, len(part))

    def _eval_embeddings(self, embeddings: npt.NDArray[np.float32]) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] != self.n_embd:
            raise ValueError(f"need [n_tokens, {self.n_embd}], got {embeddings.shape}")
        for start in range(0, len(embeddings), self._n_batch):
            part = np.ascontiguousarray(embeddings[start : start + self._n_batch], np.float32)
            batch = llama.llama_batch_init(len(part), self.n_embd, 1)
            ctypes.memmove(batch.embd, part.ctypes.data, part.nbytes)
            self._decode(batch, len(part))

    def _decode(self, batch: Any, n: int) -> None:
        """Append the batch's n entries to the sequence; logits of the last one. Frees it."""
        batch.n_tokens = n
        for i in range(n):
            batch.pos[i] = self.n_past + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == n - 1
        status = llama.llama_decode(self._context, batch)
        llama.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status} at position {self.n_past}")
        self.n_past += n


def _open_encoder(path: str | Path, n_threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def load_heldout(path: str | Path) -> list[dict[str, Any]]:
    """The items of models/demo/heldout.json."""
    items: list[dict[str, Any]] = json.loads(Path(path).read_text())["items"]
    return items
