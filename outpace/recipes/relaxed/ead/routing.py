"""Which of two models writes the next token, from the entropies of the last ones (Simonds 2025).

Letters: M texts, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.sampling.topk import at_least_float32


@dataclass(frozen=True, slots=True)
class Route:
    """Where a text stands; as it is here, before its first new token."""

    large: bool = False  # whether the large model writes the next token
    stay: int = 0  # number of tokens that this model has written since the last switch
    # in bits, of the distributions from which the last tokens came, whichever model wrote them
    entropies: tuple[float, ...] = ()


class Routing:
    """Decides after each token which model writes the next one: the large model if the mean entropy of the
    last `window` distributions is above `tau` bits, else the small model. A model writes at least `min_stay`
    tokens before the other takes over. A switch does not empty the window."""

    def __init__(self, tau: float, window: int, min_stay: int) -> None:
        """ValueError for a `tau` that is NaN, and for a `window` or a `min_stay` below 1."""
        if math.isnan(tau):
            raise ValueError("tau is nan: give a number of bits, or -1 for the large model alone")
        if window < 1 or min_stay < 1:
            raise ValueError(f"window is {window} and min_stay {min_stay}: give at least 1 token each")
        self.tau, self.window, self.min_stay = tau, window, min_stay

    @property
    def is_exact(self) -> bool:
        """Whether the large model writes every token: no entropy is below 0."""
        return self.tau < 0

    def after(self, route: Route, entropy: float) -> Route:
        """Where the text stands after one more token, drawn from a distribution with this entropy."""
        entropies, stay = (*route.entropies, entropy)[-self.window :], route.stay + 1
        large = sum(entropies) / len(entropies) > self.tau if stay >= self.min_stay else route.large
        return Route(large, stay if large == route.large else 0, entropies)


def entropy_in_bits(logits: Tensor) -> Tensor:  # (M, V) -> (M,)
    """The entropies of distributions with these logits, in bits; at temperature 1, nothing excluded."""
    return torch.special.entr(at_least_float32(logits).softmax(-1)).sum(-1) / math.log(2)
