"""Adam for weights that are trained while they are in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8  # as in the paper

Weights = tuple[Tensor, ...]


class OnlineAdam:
    """Adam (Kingma and Ba 2015) for a tuple of tensors that is replaced as a whole.

    No tensor is written to: an update computes new ones and stores them at its end, if they are finite. So an
    update that diverges, raises or is interrupted leaves the weights of the one before. Memory: three times
    that of the weights; eight times during an update."""

    def __init__(self, weights: Sequence[Tensor], rate: float) -> None:
        self.weights: Weights = tuple(weights)
        self._rate, self._num_updates = rate, 0
        self._moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in weights]

    def update(self, losses: Callable[[Weights], Iterable[Tensor]]) -> bool:
        """One update against the sum of `losses`, each with a backward pass of its own: they are computed
        from the weights that `losses` receives. Returns False, and changes nothing, if the loss, the gradient
        or the new weights are not finite."""
        # sessions decode in inference mode, in which no gradient can be computed
        with torch.inference_mode(False):
            with torch.enable_grad():
                leaves = tuple(each.detach().clone().requires_grad_() for each in self.weights)
                gradients = [torch.zeros_like(each) for each in leaves]
                for loss in losses(leaves):
                    if not loss.isfinite():
                        return False
                    found = torch.autograd.grad(loss, leaves, allow_unused=True)
                    for total, each in zip(gradients, found, strict=True):
                        if each is not None:
                            total += each
            with torch.no_grad():
                weights, moments = self._step(gradients)
                if not all(bool(each.isfinite().all()) for each in weights):
                    return False
        self.weights, self._moments = weights, moments
        self._num_updates += 1
        return True

    def _step(self, gradients: Sequence[Tensor]) -> tuple[Weights, list[tuple[Tensor, Tensor]]]:
        """The next weights and moments."""
        time = self._num_updates + 1
        weights, moments = list[Tensor](), list[tuple[Tensor, Tensor]]()
        for weight, gradient, (first, second) in zip(self.weights, gradients, self._moments, strict=True):
            first = BETAS[0] * first + (1 - BETAS[0]) * gradient
            second = BETAS[1] * second + (1 - BETAS[1]) * gradient.square()
            scale = (second / (1 - BETAS[1] ** time)).sqrt() + EPSILON
            weights.append(weight - self._rate / (1 - BETAS[0] ** time) * first / scale)
            moments.append((first, second))
        return tuple(weights), moments
