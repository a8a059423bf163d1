"""Engines on the first Vulkan device and on the CPU, from one build of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.devices import open_device
from edge_vlm_ros.engines.model import LlamaModel

MODEL = Path(__file__).resolve().parents[2] / "models" / "demo" / "lm.Q8_0.gguf"
MakeContext = Callable[[str], LlamaContext]


@contextmanager
def contexts() -> Iterator[MakeContext]:
    """Makes contexts of the demo model on devices given by their texts, and closes them."""
    with ExitStack() as stack:

        def make(text: str) -> LlamaContext:
            model = LlamaModel(MODEL, device=open_device(text))
            stack.callback(model.close)
            context = LlamaContext(
                model, n_ctx=512, n_seq_max=4, n_batch=64, kv_type="q8_0", n_threads=2
            )
            stack.callback(context.close)
            return context

        yield make
