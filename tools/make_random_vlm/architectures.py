"""The vision-language models whose architectures can be made, and what is special about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import projectors
from .language import LanguageShape, write_language
from .projectors import Projector, VisionShape, write_projector

_CHATML = {
    "open": "<|im_start|>user\n",
    "frame_prefix": "",
    "frame_suffix": "\n",
    "ask": "<|im_end|>\n<|im_start|>assistant\n",
    "close": "<|im_end|>\n<|im_start|>user\n",
    "stop": "<|im_end|>",
}
_VICUNA = {
    "open": "<s>USER: ",
    "frame_prefix": "",
    "frame_suffix": "\n",
    "ask": " ASSISTANT:",
    "close": "</s>USER: ",
    "stop": "</s>",
}
_GRID = [(row, column) for row in range(1, 7) for column in range(1, 7)]


@dataclass(frozen=True)
class RandomVlm:
    """One architecture. A frame of ``size`` (height, width) pixels becomes ``n_tokens`` tokens;
    ``template`` has the fields of a model profile's template, ``stop`` being its stop token."""

    models: str
    kind: str
    draw: Projector
    language: LanguageShape
    size: tuple[int, int]
    n_tokens: int
    template: Mapping[str, str]
    specials: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    vision: VisionShape = VisionShape()
    grid: tuple[int, int, int, int] | None = None
    """Rows and columns of the image, and tokens before and after it, with M-RoPE."""

    @property
    def n_embd_frame(self) -> int:
        """Values of a row of a frame."""
        return self.language.n_embd * (1 + self.language.deepstack)

    def write(self, folder: Path, seed: int = 0) -> tuple[Path, Path]:
        """Write language.gguf and mmproj.gguf; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        language, mmproj = folder / "language.gguf", folder / "mmproj.gguf"
        write_language(language, self.language, self.specials, self.words, seed)
        write_projector(mmproj, self.kind, self.draw, self.vision, self.language.n_embd, seed + 1)
        return language, mmproj


_SMOLVLM = {
    "open": "<|im_start|>User:",
    "frame_prefix": "",
    "frame_suffix": "",
    "ask": "<end_of_utterance>\nAssistant:",
    "close": "<end_of_utterance>\nUser:",
    "stop": "<end_of_utterance>",
}
_PIXTRAL = {
    "open": "<s>[INST]",
    "frame_prefix": "",
    "frame_suffix": "",
    "ask": "[/INST]",
    "close": "</s>[INST]",
    "stop": "</s>",
}
_JANUS = {
    "open": "<|User|>: ",
    "frame_prefix": "<begin_of_image>",
    "frame_suffix": "<end_of_image>\n",
    "ask": "\n\n<|Assistant|>:",
    "close": "<|end_of_sentence|><|User|>: ",
    "stop": "<|end_of_sentence|>",
}
_KIMI = {
    "open": "<|im_user|>user<|im_middle|>",
    "frame_prefix": "",
    "frame_suffix": "",
    "ask": "<|im_end|><|im_assistant|>assistant<|im_middle|>",
    "close": "<|im_end|><|im_user|>user<|im_middle|>",
    "stop": "<|im_end|>",
}
_GEMMA = {
    "open": "<start_of_turn>user\n",
    "frame_prefix": "",
    "frame_suffix": "",
    "ask": "<end_of_turn>\n<start_of_turn>model\n",
    "close": "<end_of_turn>\n<start_of_turn>user\n",
    "stop": "<end_of_turn>",
}

ARCHITECTURES: Mapping[str, RandomVlm] = {
    "smolvlm2": RandomVlm(
        "SmolVLM, SmolVLM2", "idefics3", projectors.idefics3, LanguageShape("llama"),
        (48, 64), 33, _SMOLVLM,
        ("<end_of_utterance>", "<fake_token_around_image>", "<global-img>",
         *(f"<row_{row}_col_{column}>" for row, column in _GRID)),
        ("ĊĊ",),  # two line breaks, which no merge of the demo's vocabulary makes
        VisionShape(enlarge_to=64),
    ),
    "internvl3": RandomVlm(
        "InternVL2.5, InternVL3", "internvl", projectors.internvl, LanguageShape("qwen2"),
        (32, 64), 14, _CHATML, ("<img>", "</img>"),
    ),
    "internvl3.5": RandomVlm(
        "InternVL3.5", "internvl", projectors.internvl, LanguageShape("qwen3"),
        (32, 32), 6, _CHATML, ("<img>", "</img>"),
    ),
    "llava-1.5": RandomVlm(
        "LLaVA-1.5", "mlp", projectors.llava, LanguageShape("llama"),
        (32, 32), 16, _VICUNA, ("<s>", "</s>"),
    ),
    "llava-onevision": RandomVlm(
        "LLaVA-OneVision, LLaVA-1.6 (NeXT)", "mlp", projectors.llava_onevision,
        LanguageShape("qwen2"), (48, 64), 80, _CHATML,
    ),
    "granite-vision": RandomVlm(
        "Granite Vision 3.1 to 3.3", "mlp", projectors.granite_vision, LanguageShape("granite"),
        (32, 64), 48, _CHATML,
    ),
    "mobilevlm-v2": RandomVlm(
        "MobileVLM V2", "ldpv2", projectors.ldpv2, LanguageShape("llama"),
        (48, 48), 144, _VICUNA, ("<s>", "</s>"),
        vision=VisionShape(image=48, patch=2),  # 24 x 24 patches are fixed in llama.cpp
    ),
    "minicpm-v-2.6": RandomVlm(
        "MiniCPM-V 2.6", "resampler", projectors.minicpmv(version=3),
        LanguageShape("qwen2", n_embd=128, n_head=4), (32, 64), 24, _CHATML,
        ("<image>", "</image>", "<slice>", "</slice>"),
    ),
    "minicpm-v-4.0": RandomVlm(
        "MiniCPM-V 4.0", "resampler", projectors.minicpmv(version=5),
        LanguageShape("llama", n_embd=128, n_head=4), (32, 32), 8, _CHATML,
        ("<image>", "</image>", "<slice>", "</slice>"),
    ),
    "pixtral": RandomVlm(
        "Pixtral 12B", "pixtral", projectors.pixtral, LanguageShape("llama"),
        (32, 48), 28, _PIXTRAL, ("<s>", "</s>", "[INST]", "[/INST]", "[IMG_END]"),
    ),
    "lightonocr": RandomVlm(
        "LightOnOCR", "lightonocr", projectors.lightonocr, LanguageShape("qwen3"),
        (48, 64), 14, _CHATML, vision=VisionShape(image=64),
    ),
    "janus-pro": RandomVlm(
        "Janus-Pro", "janus_pro", projectors.janus_pro, LanguageShape("llama"),
        (32, 32), 16, _JANUS,
        ("<|User|>", "<|Assistant|>", "<begin_of_image>", "<end_of_image>",
         "<|end_of_sentence|>"),
    ),
    "kimi-vl": RandomVlm(
        "Kimi-VL", "kimivl", projectors.kimivl, LanguageShape("deepseek2", n_layer=27),
        (48, 64), 14, _KIMI,
        ("<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|media_start|>",
         "<|media_end|>"),
    ),
    "qwen2-vl": RandomVlm(
        "Qwen2-VL", "qwen2vl_merger", projectors.qwen2vl, LanguageShape("qwen2vl"),
        (48, 64), 14, _CHATML, grid=(3, 4, 1, 1),
    ),
    "qwen2.5-vl": RandomVlm(
        "Qwen2.5-VL", "qwen2.5vl_merger", projectors.qwen25vl, LanguageShape("qwen2vl"),
        (48, 64), 14, _CHATML, grid=(3, 4, 1, 1),
    ),
    "qwen3-vl": RandomVlm(
        "Qwen3-VL", "qwen3vl_merger", projectors.qwen3vl,
        LanguageShape("qwen3vl", deepstack=1), (48, 64), 14, _CHATML, grid=(3, 4, 1, 1),
    ),
    "hunyuan-vl": RandomVlm(
        "HunyuanOCR, HunyuanVL", "hunyuanvl", projectors.hunyuanvl,
        LanguageShape("hunyuan_vl"), (48, 64), 19, _CHATML,
        ("<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁101｜>"),
    ),
    "gemma3": RandomVlm(
        "Gemma 3", "gemma3", projectors.gemma3, LanguageShape("gemma3"),
        (32, 32), 6, _GEMMA,
        ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>"),
    ),
    "lfm2-vl": RandomVlm(
        "LFM2-VL", "lfm2", projectors.lfm2, LanguageShape("lfm2", n_kv=2),
        (32, 32), 66, _CHATML, ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
    ),
}  # fmt: skip
