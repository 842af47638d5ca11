"""Muon for the hidden matrices, AdamW for the rest.

Muon needs about half the tokens AdamW needs, and tokens are what a CPU has few of. torch.optim.Muon computes in
bfloat16, which most CPUs only emulate; this one keeps the gradient's type.
"""

import torch
from torch import Tensor, nn

# One odd polynomial a step, each the best one for the singular values its predecessor leaves (Amsel et al. 2025).
POLYNOMIALS = (
    (8.2872, -23.5959, 17.3004),
    (4.1071, -2.9478, 0.5448),
    (3.9487, -2.9089, 0.5518),
    (3.3184, -2.4885, 0.51),
)


def orthogonalize(matrix: Tensor) -> Tensor:  # (out, in) -> (out, in)
    """A matrix of the same directions whose singular values lie around 1, mostly between 0.5 and 1.5."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    x = wide / (wide.norm() * 1.01 + 1e-7)
    for a, b, c in POLYNOMIALS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.mT


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are orthogonalized, so that every direction learns at one pace."""

    def __init__(self, weights: list[nn.Parameter], *, lr: float, momentum: float = 0.95, decay: float = 0.05) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update."""
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                average = state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalize(weight.grad.lerp(average, group["momentum"]))
                scale = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.mul_(1 - group["lr"] * group["decay"]).add_(update, alpha=-group["lr"] * scale)


def make_optimizers(model: nn.Module, matrix_rate: float, vector_rate: float) -> list[torch.optim.Optimizer]:
    """Muon over the matrices inside layers, Adam over embedding and norms; each group keeps its full rate as `top`."""
    matrices = [w for name, w in model.named_parameters() if w.ndim == 2 and "embed" not in name]
    others = [w for name, w in model.named_parameters() if w.ndim != 2 or "embed" in name]
    # 0.995: a rare token is met every hundred steps, and a shorter memory would make a full step of every step's noise
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=matrix_rate),
        torch.optim.AdamW(others, lr=vector_rate, betas=(0.9, 0.995), eps=1e-10, weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["top"] = group["lr"]
    return optimizers
