"""One training step: pictures, forward pass, loss, update, score."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from edge_vlm_ros.demo.questions import KIND_NAMES
from edge_vlm_ros.demo.sprites import sprite_bank
from edge_vlm_ros.demo.world import COLOR_NAMES, MAX_FRAMES, TYPES
from tools.demo_model.batches import (
    GROUPS,
    ID,
    LEARN,
    POSITION,
    SEGMENT,
    STREAM,
    Batch,
    attention_mask,
)
from tools.demo_model.language_model import LanguageModel
from tools.demo_model.optimizer import MuonAdamW
from tools.demo_model.presets import Preset
from tools.demo_model.renderer_torch import (
    Noise,
    Stages,
    draw_background,
    draw_object,
    expose,
    render_batch,
)
from tools.demo_model.vision_model import VisionEncoder

_AUX_WEIGHT = 0.5  # of the auxiliary loss at the start; it fades
_NOTHING_WEIGHT = 0.15  # of image tokens that show no object, in the auxiliary loss
_WARM_UP_STEPS = 300


@dataclass(frozen=True)
class Losses:
    answers: Tensor
    types: Tensor
    colors: Tensor


class Score:
    """Answers right in every token and in the stop token, by group, kind and number of frames."""

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.zeros(2, len(GROUPS), len(KIND_NAMES), MAX_FRAMES + 1, device=device)

    @torch.no_grad()
    def add(self, batch: Batch, right_tokens: Tensor) -> None:
        """right_tokens: float [tokens to learn]"""
        owner = batch.tokens[LEARN].reshape(-1)[batch.learn_at].long() - 1
        answers = batch.answers.long()
        right = torch.ones(len(answers), device=right_tokens.device)
        right.index_reduce_(0, owner, right_tokens, "amin")
        _, n_kinds, n_frames = self._counts.shape[1:]
        at = (answers[:, 2] * n_kinds + answers[:, 0]) * n_frames + answers[:, 1]
        self._counts[0].view(-1).index_add_(0, at, right)
        self._counts[1].view(-1).index_add_(0, at, torch.ones_like(right))

    def report(self, *, details: bool = False) -> str:
        """The shares since the last report."""
        counts = self._counts.cpu().clone()
        self._counts.zero_()

        def share(part: Tensor) -> str:
            return f"{float(part[0].sum() / part[1].sum().clamp(min=1)):.3f}"

        groups = ", ".join(f"{g} {share(counts[:, i])}" for i, g in enumerate(GROUPS))
        text = f"exact {share(counts)} of {int(counts[1].sum())} ({groups})"
        if details:
            asked = counts[:, :2].sum(1)
            kinds = (f"{k} {share(asked[:, i])}" for i, k in enumerate(KIND_NAMES))
            frames = (f"{f}: {share(asked[:, :, f])}" for f in range(1, MAX_FRAMES + 1))
            text += f"\n   by kind: {', '.join(kinds)}\n   by frames: {', '.join(frames)}"
        return text


class Trainer:
    """Holds the model and its optimizer on one device."""

    def __init__(
        self, preset: Preset, device: torch.device, lr: float, muon_lr: float, *, compiled: bool
    ) -> None:
        self.encoder = VisionEncoder(preset.vision).to(device)
        self.language = LanguageModel(preset.language).to(device)
        self._device, self._preset = device, preset
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            self.encoder.stem.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        d = preset.language.n_embd
        self._type_of = nn.Linear(d, len(TYPES) + 1).to(device)
        self._color_of = nn.Linear(d, len(COLOR_NAMES)).to(device)
        self.model = nn.ModuleDict(
            {
                "vis": self.encoder,
                "lm": self.language,
                "aux_t": self._type_of,
                "aux_c": self._color_of,
            }
        )
        self._optimizer = MuonAdamW(self.model, lr, muon_lr)
        self.score = Score(device)
        self.n_steps = 0
        half = torch.bfloat16 if self._on_gpu else torch.float32
        self._bank = torch.tensor(sprite_bank(), device=device, dtype=half)
        self._noise = Noise(device)
        self._type_weights = torch.ones(len(TYPES) + 1, device=device)
        self._type_weights[0] = _NOTHING_WEIGHT
        rows, length = preset.rows.rows, preset.rows.tokens
        # Fixed buffers, so that the mask function is compiled once.
        self._stream = torch.zeros(rows, length, dtype=torch.int32, device=device)
        self._segment = torch.zeros_like(self._stream)
        self._make_block_mask: Callable[..., BlockMask] = create_block_mask
        self._stages, self._draw_dtype = Stages(), half
        if compiled:
            self._compile()

    def _compile(self) -> None:
        functions = [
            torch.compile(f, dynamic=False) for f in (draw_background, draw_object, expose)
        ]
        self._stages, self._draw_dtype = Stages(*functions), torch.float32
        self._make_block_mask = torch.compile(create_block_mask, dynamic=False)
        for block in [*self.encoder.blocks, *self.language.model.layers]:
            block.compile(dynamic=False)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "n_steps": self.n_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.n_steps = state["n_steps"]

    def step(self, batch: Batch, progress: float) -> Losses:
        """Learn from one batch. progress: share of the schedule that is over, 0 .. 1."""
        losses = self.forward(batch.to(self._device))
        fade = max(0.06, 1 - 1.5 * progress)
        self.model.zero_grad(set_to_none=True)
        total = losses.answers + _AUX_WEIGHT * fade * (losses.types + losses.colors)
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        warm_up = min(1.0, (self.n_steps + 1) / _WARM_UP_STEPS)
        self._optimizer.step(warm_up * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress))))
        self.n_steps += 1
        return losses

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> float:
        """The loss of one batch; adds to the score, learns nothing."""
        return float(self.forward(batch.to(self._device)).answers)

    def forward(self, batch: Batch) -> Losses:
        """batch: on the trainer's device."""
        tokens = batch.tokens.int()
        ids = tokens[ID].reshape(-1).long()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._on_gpu):
            seen = self.encoder(self._pictures(batch))
            types, colors = self._type_of(seen), self._color_of(seen)
            embedded = self.language.embed(ids.clamp(min=0))
            flat = seen.reshape(-1, seen.shape[-1]).float()
            embedded = embedded.index_copy(0, batch.image_at, flat)
            rows = embedded.view(*tokens.shape[1:], -1)
            hidden = self.language(rows, self._mask(tokens), tokens[POSITION])
            hidden = hidden.reshape(len(ids), -1)[batch.learn_at - 1]
            logits = self.language.lm_head(hidden).float()
        wanted = ids[batch.learn_at]
        self.score.add(batch, (logits.argmax(-1) == wanted).float())
        true_types, true_colors = batch.targets.long().flatten(1)
        on = (true_types > 0).float()
        color_losses = functional.cross_entropy(
            colors.float().flatten(0, 1), true_colors, reduction="none"
        )
        return Losses(
            functional.cross_entropy(logits, wanted),
            functional.cross_entropy(
                types.float().flatten(0, 1), true_types, weight=self._type_weights
            ),
            (color_losses * on).sum() / on.sum().clamp(min=1),
        )

    @torch.no_grad()
    def _pictures(self, batch: Batch) -> Tensor:
        pictures = render_batch(
            batch.objects,
            batch.background,
            batch.scene,
            self._bank,
            self._preset.vision.size,
            n_slots=self._preset.world.max_objects,
            noise=self._noise,
            dtype=self._draw_dtype,
            out_dtype=self._bank.dtype,
            stages=self._stages,
        )
        if self._on_gpu:
            return pictures.contiguous(memory_format=torch.channels_last)
        return pictures

    def _mask(self, tokens: Tensor) -> Tensor | BlockMask:
        if not self._on_gpu:
            return attention_mask(tokens)
        self._stream.copy_(tokens[STREAM])
        self._segment.copy_(tokens[SEGMENT])
        stream, segment = self._stream, self._segment

        def visible(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            shared = (segment[row, key] == 0) | (segment[row, key] == segment[row, query])
            return (query >= key) & (stream[row, query] == stream[row, key]) & shared

        rows, length = stream.shape
        return self._make_block_mask(visible, rows, None, length, length, device=self._device)
