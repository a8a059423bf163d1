"""A loaded language model and its vocabulary."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import llama_cpp.llama_cpp as llama

from edge_vlm_ros.model_profile import sha256_file

from . import ggml, native_log
from .config import KvType
from .devices import CPU, Device
from .errors import ContextError, ModelLoadError, UnsupportedModelError
from .snapshot import M_ROPE_TYPES
from .state_blob import row_bytes

# enum llama_rope_type
_VISION_ROPE = 24
# Frames whose positions are no grid, although the rope has sections.
_OTHER_POSITIONS = ("hunyuan_vl",)
# Rows of image embeddings carry what is added after the first layers as well.
_DEEPSTACK = ("qwen3vl", "qwen3vlmoe")
# enum llama_ftype: weights whose products do not depend on the shape of the batch
BATCH_INVARIANT_FTYPES = {2: "Q4_0", 7: "Q8_0"}

Progress = Callable[[float], None]
_ALL_LAYERS = -1
_DEFAULT_ROPE_FREQ_BASE = 10000.0
_backend_lock = threading.Lock()
_backend_ready = False


class LlamaModel:
    """Weights on one device and their vocabulary. Several contexts may share them.

    On the CPU nothing is ever handed to a GPU; ``repack`` allows it a rearranged private copy of
    the weights (llama.cpp's extra buffer types), else it computes in the file's mapped pages. On
    another device all layers are there; only the token embeddings stay with the CPU. ``digest`` is
    the SHA-256 of the file, 32 bytes, read from the file when it is asked for and not given.

    The vocabulary's methods may be called from any thread. Raises ModelLoadError when the file
    cannot be loaded, UnsupportedModelError when its state cannot be forked at any position and
    NativeAbortError when an RPC server is lost meanwhile.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress | None = None,
        *,
        device: Device = CPU,
        digest: bytes | None = None,
        repack: bool = True,
    ) -> None:
        _init_backend()
        if not path.is_file():
            raise ModelLoadError(f"there is no model file {path}")
        self.path = path
        self.device = device
        self._digest = digest
        self.handle = device.call(lambda: _load(path, progress, device, repack))
        try:
            self._refuse_unsupported()
        except UnsupportedModelError:
            self.close()
            raise
        self.vocab = llama.llama_model_get_vocab(self.handle)
        self.n_vocab: int = llama.llama_vocab_n_tokens(self.vocab)
        self.n_embd: int = llama.llama_model_n_embd(self.handle)
        self.n_embd_frame: int = llama.llama_model_n_embd_inp(self.handle)
        """Values of a row of frame embeddings: more than ``n_embd`` in models with deepstack."""
        self.n_ctx_train: int = llama.llama_model_n_ctx_train(self.handle)
        self.n_bytes: int = llama.llama_model_size(self.handle)
        self.ftype: int = llama.llama_model_ftype(self.handle)
        self.description = self._description()
        self._read_geometry()
        self._pieces: dict[int, bytes] = {}

    def _read_geometry(self) -> None:
        """What rows of a KV cache look like, and how positions are encoded in them."""
        handle = self.handle
        self.architecture = arch = self.metadata("general.architecture") or ""
        self.n_layer: int = llama.llama_model_n_layer(handle)
        n_head_kv = llama.llama_model_n_head_kv(handle)
        head_dim = self.n_embd // llama.llama_model_n_head(handle)
        k_dim = int(self.metadata(f"{arch}.attention.key_length") or head_dim)
        v_dim = int(self.metadata(f"{arch}.attention.value_length") or head_dim)
        self.head_dims = (k_dim, v_dim)
        self.n_embd_k: int = n_head_kv * k_dim
        self.n_embd_v: int = n_head_kv * v_dim
        self.rope_type: int = llama.llama_model_rope_type(handle)
        self.has_grids = self.rope_type in M_ROPE_TYPES
        """Whether the embeddings of a frame have positions in a grid (M-RoPE)."""
        self.rope_freq_base = float(
            self.metadata(f"{arch}.rope.freq_base") or _DEFAULT_ROPE_FREQ_BASE
        )
        self.rope_freq_scale: float = llama.llama_model_rope_freq_scale_train(handle)

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of the model file, 32 bytes."""
        return self._digest or bytes.fromhex(sha256_file(self.path))

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
        """Whether results are bit-equal for every batch composition, chunk size and thread count on
        the CPU, and in all cells that lie in the order of their positions: measured for Q8_0 and
        Q4_0 weights with a q8_0 KV cache."""
        return kv_type == "q8_0" and self.ftype in BATCH_INVARIANT_FTYPES

    def is_end(self, token: int) -> bool:
        """Whether the vocabulary marks the token as the end of a generation."""
        return bool(llama.llama_vocab_is_eog(self.vocab, token))

    def close(self) -> None:
        """Free the weights, after all contexts. Closing again changes nothing.

        On a device that is lost they are abandoned: freeing them would never return.
        """
        handle, self.handle = self.handle, None
        if handle is not None and not self.device.is_lost():
            self.device.call(lambda: llama.llama_model_free(handle))

    def kv_bytes(self, n_cells: int, kv_type: KvType) -> int:
        """Size of a KV cache: K and V rows of all KV heads, every layer."""
        row = row_bytes(kv_type, self.n_embd_k) + row_bytes(kv_type, self.n_embd_v)
        return self.n_layer * n_cells * row

    def check_memory(self, n_cells: int, kv_type: KvType) -> None:
        """Raises ContextError when the device says that it has not the room for such a cache."""
        needed, free = self.kv_bytes(n_cells, kv_type), self.device.memory_free()
        if 0 < free < needed:
            raise ContextError(
                f"{n_cells} cells of {kv_type} KV take {needed / 2**20:.0f} MiB, "
                f"{self.device.text} has {free / 2**20:.0f} MiB free: lower n_ctx or the limits of "
                "the histories"
            )

    def _refuse_unsupported(self) -> None:
        handle = self.handle
        arch = self.metadata("general.architecture") or ""
        rope_type = llama.llama_model_rope_type(handle)
        is_wide = llama.llama_model_n_embd_inp(handle) != llama.llama_model_n_embd(handle)
        reason = ""
        if llama.llama_model_is_recurrent(handle) or llama.llama_model_is_hybrid(handle):
            reason = "it keeps a recurrent state, which cannot be forked at an older version"
        elif llama.llama_model_is_diffusion(handle) or llama.llama_model_has_encoder(handle):
            reason = "it is not a plain decoder"
        elif llama.llama_model_n_swa(handle) > 0:
            reason = "its attention has a sliding window, so older versions lose their cells"
        elif rope_type == _VISION_ROPE or (rope_type in M_ROPE_TYPES and arch in _OTHER_POSITIONS):
            reason = "the positions of its image tokens are of a kind that is not supported"
        elif is_wide and arch not in _DEEPSTACK:
            reason = (
                "its image embeddings are wider than its layers, which is supported for Qwen3-VL"
            )
        if reason:
            raise UnsupportedModelError(
                f"model {self.path.name} cannot be used: {reason}. Models with full attention "
                "such as Qwen2, Qwen2.5, Qwen3, their VL kinds and SmolLM2 work"
            )


def _load(path: Path, progress: Progress | None, device: Device, repack: bool) -> object:
    @llama.llama_progress_callback  # type: ignore[untyped-decorator]
    def report(fraction: float, _user_data: object) -> bool:
        if progress is not None:
            progress(fraction)
        return True

    params = llama.llama_model_default_params()
    params.split_mode = llama.LLAMA_SPLIT_MODE_NONE
    params.use_extra_bufts = repack
    devices = ggml.address_array([device.handle, None])
    if device.is_cpu:
        # n_gpu_layers = 0 alone would still hand large batches to a GPU of the same build.
        params.n_gpu_layers = 0
        params.main_gpu = -1
    else:
        params.n_gpu_layers = _ALL_LAYERS
        params.main_gpu = 0
        params.devices = ctypes.addressof(devices)
    params.progress_callback = report
    native_log.recent_errors()
    handle = llama.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        raise ModelLoadError(
            f"cannot load {path} on {device.text}: {native_log.recent_errors()}. Is it a complete "
            "GGUF file of an architecture this llama.cpp knows, and has the device the memory?"
        )
    return handle


def _init_backend() -> None:
    global _backend_ready
    with _backend_lock:
        if not _backend_ready:
            native_log.install()
            llama.llama_backend_init()
            _backend_ready = True
