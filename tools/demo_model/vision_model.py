"""The vision encoder: a convolutional stem and a small transformer; 49 tokens per picture."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class VisionConfig:
    """The stem has four stride-2 convolutions (patch 16); merge x merge patches make a token."""

    size: int = 224
    patch: int = 16
    d: int = 192
    layers: int = 6
    heads: int = 3
    merge: int = 2
    hidden: int = 512  # of the projector
    d_lm: int = 256

    @property
    def grid(self) -> int:
        """Tokens per side of the picture."""
        return self.size // self.patch // self.merge

    @property
    def tokens(self) -> int:
        return self.grid**2


class Block(nn.Module):
    """Pre-norm transformer block, bidirectional."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        d = config.d
        self.h = config.heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f1, self.f2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.plain_attention = False  # MatMul and Softmax, for the ONNX export

    def forward(self, x: Tensor) -> Tensor:
        # int(): sizes are constants in the exported graph.
        n, tokens, d = (int(s) for s in x.shape)
        head = d // self.h
        qkv = self.qkv(self.n1(x)).view(n, tokens, 3, self.h, head)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.plain_attention:
            y = torch.softmax(q @ k.transpose(-1, -2) * head**-0.5, -1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(y.transpose(1, 2).reshape(n, tokens, d))
        hidden = functional.gelu(self.f1(self.n2(x)), approximate="tanh")
        out: Tensor = x + self.f2(hidden)
        return out


class VisionEncoder(nn.Module):
    """[N, 3, size, size] RGB in [0, 1] -> [N, tokens, d_lm]. The stem's BatchNorm folds away."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        d = config.d
        stem: list[nn.Module] = []
        for a, b in pairwise([3, d // 6, d // 3, d * 2 // 3, d]):
            stem += [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.stem = nn.Sequential(*stem[:-1], nn.Conv2d(d, d, 1))
        n_patches = (config.size // config.patch) ** 2
        self.pos = nn.Parameter(torch.zeros(1, n_patches, d))
        nn.init.normal_(self.pos, 0, 0.02)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        merged = d * config.merge**2
        self.nm = nn.LayerNorm(merged)
        self.p1, self.p2 = nn.Linear(merged, config.hidden), nn.Linear(config.hidden, config.d_lm)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem((x - 0.5) * 4)
        n, d, side, _ = (int(s) for s in x.shape)
        x = x.flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            x = block(x)
        merge = self.config.merge
        grid = side // merge
        x = x.view(n, grid, merge, grid, merge, d).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(n, grid * grid, merge**2 * d)
        out: Tensor = self.p2(functional.gelu(self.p1(self.nm(x)), approximate="tanh"))
        return out
