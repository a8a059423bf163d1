"""The language model: the Qwen3 architecture, small. Weight names are those of transformers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

# Which earlier positions each one sees: causal, a boolean tensor, or a block mask (packed rows).
Mask = Tensor | BlockMask | None


@dataclass(frozen=True)
class LanguageConfig:
    """head_dim 64 suits every flash-attention kernel and a q8_0 KV cache."""

    vocab_size: int = 960
    n_embd: int = 256
    n_layer: int = 8
    n_head: int = 4
    n_kv: int = 2
    head_dim: int = 64
    n_ff: int = 768
    n_ctx: int = 4096
    rope_theta: float = 10000.0
    eps: float = 1e-6

    def to_json(self) -> dict[str, Any]:
        return {"arch": "qwen3", **asdict(self), "tied": True}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> LanguageConfig:
        """Raises ValueError for another architecture."""
        fields = dict(fields)
        arch, tied = fields.pop("arch"), fields.pop("tied")
        if arch != "qwen3" or not tied:
            raise ValueError(f"need a qwen3 model with tied embeddings, got {arch}, tied={tied}")
        return cls(**fields)


class RMSNorm(nn.Module):
    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return scaled.to(x.dtype) * self.weight.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions; the two halves of a head are the pairs."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return (x * cos + turned * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self._config = config
        d, head = config.n_embd, config.head_dim
        self.q_proj = nn.Linear(d, config.n_head * head, bias=False)
        self.k_proj = nn.Linear(d, config.n_kv * head, bias=False)
        self.v_proj = nn.Linear(d, config.n_kv * head, bias=False)
        self.o_proj = nn.Linear(config.n_head * head, d, bias=False)
        self.q_norm, self.k_norm = RMSNorm(head, config.eps), RMSNorm(head, config.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        c = self._config
        n, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(n, length, c.n_head, c.head_dim))
        k = self.k_norm(self.k_proj(x).view(n, length, c.n_kv, c.head_dim))
        v = self.v_proj(x).view(n, length, c.n_kv, c.head_dim).transpose(1, 2)
        q, k = _rotate(q.transpose(1, 2), cos, sin), _rotate(k.transpose(1, 2), cos, sin)
        if isinstance(mask, BlockMask):
            y = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        else:
            group = c.n_head // c.n_kv
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            y = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None
            )
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(n, length, -1))
        return out


class MLP(nn.Module):
    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.n_ff, bias=False)
        self.down_proj = nn.Linear(config.n_ff, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.n_embd, config.eps)
        self.post_attention_layernorm = RMSNorm(config.n_embd, config.eps)
        self.self_attn, self.mlp = Attention(config), MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.n_layer)])
        self.norm = RMSNorm(config.n_embd, config.eps)


class LanguageModel(nn.Module):
    """forward: input embeddings [N, T, n_embd] -> hidden states; lm_head: hidden -> logits."""

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.02 / math.sqrt(2 * config.n_layer) if into_residual else 0.02
                nn.init.normal_(weight, 0, std)

    def embed(self, ids: Tensor) -> Tensor:
        out: Tensor = self.model.embed_tokens(ids)
        return out

    def forward(self, x: Tensor, mask: Mask = None, positions: Tensor | None = None) -> Tensor:
        """positions: [T] or [N, T]; 0 .. T-1 when None. mask: [N, 1, T, T]; causal when None."""
        c = self.config
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        exponent = torch.arange(0, c.head_dim, 2, device=x.device, dtype=torch.float32) / c.head_dim
        angle = positions.float()[..., None] * c.rope_theta ** (-exponent)
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos(), angle.sin()
        if positions.dim() == 2:
            cos, sin = cos[:, None], sin[:, None]
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        out: Tensor = self.model.norm(x)
        return out


def transformers_config(config: LanguageConfig) -> dict[str, Any]:
    """The config.json with which transformers loads the same weights."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_ff,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.n_ctx,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.eps,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float16",
        "attention_bias": False,
    }
