"""Models of real architectures through the runtime agree with llama.cpp's own evaluation.

The models are cut down and their weights random; see tools/make_random_vlm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt
import pytest
from helpers import PATIENCE_S, demo_config, settle, show
from mtmd_reference import MARKER, MtmdReference
from random_vlm import Made, frames

from edge_vlm_ros.engines.context import LlamaContext
from edge_vlm_ros.engines.errors import UnsupportedModelError
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.engines.native import FramePart
from edge_vlm_ros.runtime import AskOptions, Runtime
from edge_vlm_ros.runtime.prompt import prompt_template
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.mtmd_encoder import MtmdEncoder

GetMade = Callable[[str], Made]

WORKING = (
    "smolvlm2",
    "internvl3",
    "internvl3.5",
    "llava-1.5",
    "llava-onevision",
    "granite-vision",
    "mobilevlm-v2",
    "minicpm-v-2.6",
    "lightonocr",
    "janus-pro",
    "kimi-vl",
    "scaled-embeddings",
    "qwen2-vl",
    "qwen2.5-vl",
    "qwen3-vl",
)
PUBLISHED_WORKING = (
    "smolvlm2-256m",
    "smolvlm2-500m",
    "smolvlm2-2.2b",
    "internvl3-1b",
    "internvl3-2b",
    "minicpm-v-4",
    "qwen2-vl-2b",
    "qwen2.5-vl-3b",
    "qwen3-vl-2b",
)
REFUSED = {
    "hunyuan-vl": ("positions of its image tokens", "(XD-RoPE)"),
    "pixtral": (None, "from memory that nobody has written"),
    "gemma3": ("sliding window", "(non-causal)"),
    "lfm2-vl": ("recurrent state", None),
}
"""What the language engine says, and what the encoder says; None: no objection."""
QUESTION = "Where is the red cup?"
N_FRAMES = 3
N_ANSWER = 12


@pytest.fixture(params=(*WORKING, *PUBLISHED_WORKING))
def model(request: pytest.FixtureRequest, made: GetMade) -> Made:
    return made(request.param)


@pytest.fixture
def reference(model: Made) -> Iterator[MtmdReference]:
    reference = MtmdReference(model.language, model.mmproj)
    yield reference
    reference.close()


def prompt_of(model: Made, n_frames: int) -> str:
    text = model.profile.template
    frame = text.frame_prefix + MARKER + text.frame_suffix
    return text.open + n_frames * frame + QUESTION + text.ask


def test_logits_are_llama_cpps_own(model: Made, reference: MtmdReference) -> None:
    shown = frames(model.spec, N_FRAMES)
    expected = reference.evaluate(prompt_of(model, N_FRAMES), shown)
    actual, text_tokens = logits_of(model, shown)
    assert text_tokens == reference.text_tokens
    np.testing.assert_array_equal(actual, expected)
    other = reference.evaluate(prompt_of(model, N_FRAMES), shown[::-1])
    assert np.abs(other - expected).max() > 0.01 * expected.std(), "what is seen must matter"


def logits_of(
    model: Made, shown: list[npt.NDArray[np.uint8]]
) -> tuple[npt.NDArray[np.float32], list[int]]:
    """The logits after the prompt in an engine's context, and its tokens that are no image."""
    encoder = MtmdEncoder(model.profile.encoder, model.backend, model.language)
    language = LlamaModel(model.language)
    context = LlamaContext(
        language, n_ctx=1024, n_seq_max=2, n_batch=512, kv_type="q8_0", n_threads=1
    )
    prompt = prompt_template(model.profile, language)
    shape = prompt.frame_shape
    around = [t for c in encoder.chunks if hasattr(c, "tokens") for t in c.tokens]
    tokens = list(prompt.open_tokens)
    context.extend(0, 0, prompt.open_tokens)
    place = len(prompt.open_tokens)
    for frame in shown:
        for chunk in (shape.prefix, FramePart(encoder.encode(frame), 0, shape.grid), shape.suffix):
            if len(chunk):
                context.extend(0, place, chunk)
                place += len(chunk)
        tokens += [*shape.prefix, *around, *shape.suffix]
    question = prompt.question(language.tokenize(QUESTION, parse_special=False))
    tokens += question
    n = len(question)
    context.decode_tokens(question, range(place, place + n), [0] * n, [False] * (n - 1) + [True])
    row = llama.llama_get_logits_ith(context.handle, n - 1)
    logits = np.ctypeslib.as_array(row, (language.n_vocab,)).copy()
    context.close()
    language.close()
    encoder.close()
    return logits, tokens


def test_runtime_answers_as_llama_cpp_does(model: Made, reference: MtmdReference) -> None:
    shown = frames(model.spec, N_FRAMES, seed=1)
    reference.evaluate(prompt_of(model, N_FRAMES), shown)
    runtime = Runtime(demo_config(profile=model.profile))
    runtime.load()
    try:
        runtime.activate()
        show(runtime, "table", shown)
        settle(runtime)
        answer = runtime.ask("table", QUESTION, AskOptions(max_tokens=N_ANSWER))
        result = answer.result(PATIENCE_S)
        language = runtime._maker.vocabulary
        stop = {language.special_token(name) for name in model.profile.template.stop_tokens}
        assert list(result.token_ids) == reference.greedy(N_ANSWER, stop)
        assert result.context.frames == N_FRAMES
    finally:
        runtime.close()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str, made: GetMade) -> None:
    model = made(name)
    by_engine, by_encoder = REFUSED[name]
    runtime = Runtime(demo_config(profile=model.profile))
    with pytest.raises((UnsupportedModelError, EncoderError)) as refusal:
        runtime.load()
    assert (by_engine or by_encoder) in str(refusal.value)
    runtime.close()
    if by_encoder is None:
        MtmdEncoder(model.profile.encoder, model.backend, model.language).close()
        return
    with pytest.raises(EncoderError, match=re.escape(by_encoder)):
        MtmdEncoder(model.profile.encoder, model.backend, model.language)


@pytest.mark.parametrize(
    ("name", "enlarge_to", "n_tokens"),
    [("smolvlm2-500m", 2048, 1127), ("smolvlm2-2.2b", 1536, 1416)],
)
def test_a_projector_that_enlarges_pictures_says_how_many_tokens(
    name: str, enlarge_to: int, n_tokens: int, made: GetMade, tmp_path: Path
) -> None:
    model = made(name)
    enlarging = replace(model.spec, vision=replace(model.spec.vision, enlarge_to=enlarge_to))
    language, mmproj = enlarging.write(tmp_path)
    backend = model.backend.model_copy(update={"file": mmproj})
    with pytest.raises(EncoderError, match=f"set encoder.n_tokens to {n_tokens}$"):
        MtmdEncoder(model.profile.encoder, backend, language)
