"""Optimizers: Muon for the matrices inside layers, AdamW for the rest.

Muon needs about half the tokens of AdamW, and training on a CPU is limited to few tokens.
"""

import torch
from torch import nn


def make_optimizers(model: nn.Module, matrix_rate: float, vector_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside layers with learning rate `matrix_rate`, AdamW for embedding and norms
    with `vector_rate`; each parameter group has its full learning rate as "top"."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
    others = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed" in name]
    # beta2 0.995: rare tokens occur about every hundred steps; with a shorter average of squared gradients
    # their noise would give full-size updates
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=matrix_rate, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(others, lr=vector_rate, betas=(0.9, 0.995), eps=1e-10, weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["top"] = group["lr"]
    return optimizers
