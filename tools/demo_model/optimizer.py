"""Muon for the matrices inside the blocks, AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

WEIGHT_DECAY = 0.05
_MOMENTUM = 0.95
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class MuonAdamW:
    """Matrices of one shape are orthogonalised together. A qkv matrix counts as three."""

    def __init__(self, model: nn.Module, lr: float, muon_lr: float) -> None:
        self._lr, self._muon_lr = lr, muon_lr
        self._parts: dict[Tensor, int] = {}
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for name, weight in model.named_parameters():
            in_block = ".layers." in name or ".blocks." in name or ".p1." in name
            if weight.dim() == 2 and in_block:
                matrices.append(weight)
                self._parts[weight] = 3 if ".qkv." in name else 1
            else:
                others.append(weight)
        self._adam = torch.optim.AdamW(
            [
                {"params": [w for w in others if w.dim() >= 2], "weight_decay": WEIGHT_DECAY},
                {"params": [w for w in others if w.dim() < 2], "weight_decay": 0.0},
            ],
            lr=lr,
            betas=(0.9, 0.98),
            fused=others[0].is_cuda,
        )
        groups: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            groups[matrix.shape[0] // self._parts[matrix], matrix.shape[1]].append(matrix)
        self._groups = list(groups.items())
        self._momenta = [
            torch.zeros(sum(self._parts[w] for w in ws), *shape, device=ws[0].device)
            for shape, ws in self._groups
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"adam": self._adam.state_dict(), "momenta": self._momenta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state["adam"])
        for momentum, saved in zip(self._momenta, state["momenta"], strict=True):
            momentum.copy_(saved)

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One step at `factor` times the learning rates."""
        for group in self._adam.param_groups:
            group["lr"] = self._lr * factor
        self._adam.step()
        for (shape, weights), momentum in zip(self._groups, self._momenta, strict=True):
            parts = [self._parts[w] for w in weights]
            gradient = torch.cat(
                [w.grad.view(n, *shape) for w, n in zip(weights, parts, strict=True)]  # type: ignore[union-attr]
            ).float()
            momentum.mul_(_MOMENTUM).add_(gradient)
            updates = torch.split(_orthogonalise(gradient.add(momentum, alpha=_MOMENTUM)), parts)
            lr = self._muon_lr * factor
            torch._foreach_mul_(weights, 1 - lr * WEIGHT_DECAY)
            shaped = [u.reshape(w.shape) for u, w in zip(updates, weights, strict=True)]
            torch._foreach_add_(weights, shaped, alpha=-lr * max(1, shape[0] / shape[1]) ** 0.5)


def _orthogonalise(matrices: Tensor) -> Tensor:
    """[n, rows, columns] with singular values near 1 (Newton-Schulz)."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).float()
