"""Muon for the hidden matrices, AdamW for the rest.

Muon needs about half the tokens AdamW needs, and tokens are what a CPU has few of.
"""

import torch
from torch import nn


def make_optimizers(model: nn.Module, matrix_rate: float, vector_rate: float) -> list[torch.optim.Optimizer]:
    """Muon over the matrices inside layers, Adam over embedding and norms; each group keeps its full rate as
    `top`."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
    others = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed" in name]
    # 0.995: a rare token is met every hundred steps, and a shorter memory would make a full step of every
    # step's noise
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=matrix_rate, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(others, lr=vector_rate, betas=(0.9, 0.995), eps=1e-10, weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["top"] = group["lr"]
    return optimizers
