"""When a cascade defers to the target: six rules of Narasimhan et al. (2025), each of which makes one
distribution of the next token from those of the target and the draft model.

The rules look at how sure the models are before the request's sampling parameters; what they mix are the
distributions from which the request samples, and OPT's distance is that of these.

Letters: M nodes, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from outpace.sampling.topk import at_least_float32

Rule = Literal["chow", "diff", "opt", "token-v1", "token-v2", "token-v3"]


class Deferral:
    """One rule with its `alpha`: larger values keep more of the draft model.

    With q and p the draft model's and the target's distributions, q' and p' the same before sampling
    parameters, and TV = sum (q - p)+, the rules `chow`, `diff` and `opt` take q instead of p after a text if
    max q' is at least 1 - alpha, max p' - alpha, or max p' - alpha TV. The others defer single tokens v:
    `token-v1` if q'(v) < max p' - alpha, `token-v2` if p'(v) < max p' - alpha, `token-v3` if
    p'(v) < (1 - alpha) max p'. The next token is then one from q, or one from p if that is deferred."""

    def __init__(self, rule: Rule, alpha: float) -> None:
        """ValueError for an `alpha` below -1."""
        if not alpha >= -1:
            raise ValueError(f"alpha is {alpha}: give a number of at least -1, the target's distribution")
        self.rule, self.alpha = rule, alpha

    @property
    def is_exact(self) -> bool:
        """Whether every token is deferred, whatever the models. Not certain for OPT with any `alpha`: its
        threshold is multiplied by a distance that is small where two distributions are alike."""
        return self.alpha <= -1 and self.rule != "opt"

    def mixed(self, p: Tensor, q: Tensor, target: Tensor, draft: Tensor) -> Tensor:  # (M, V) each -> (M, V)
        """The distribution of the next token after each node. `p` and `q`: with all sampling parameters;
        `target` and `draft`: the logits before them."""
        p_sure, q_sure = (at_least_float32(logits).softmax(-1) for logits in (target, draft))
        most = p_sure.amax(-1, keepdim=True)
        if self.rule in ("chow", "diff", "opt"):
            kept = q_sure.amax(-1, keepdim=True) >= self._bound(most, p, q)
            return torch.where(kept, q, p)
        deferred = self._deferred(p_sure, q_sure, most)
        moved = torch.where(deferred, q, 0.0).sum(-1, keepdim=True)
        return torch.where(deferred, 0.0, q) + moved * p

    def _bound(self, most: Tensor, p: Tensor, q: Tensor) -> Tensor:  # (M, 1), (M, V), (M, V) -> (M, 1)
        """The least probability of the draft model's most probable token with which it is kept."""
        if self.rule == "chow":
            return torch.full_like(most, 1 - self.alpha)
        if self.rule == "diff":
            return most - self.alpha
        return most - self.alpha * (q - p).clamp(min=0).sum(-1, keepdim=True)

    def _deferred(self, p: Tensor, q: Tensor, most: Tensor) -> Tensor:
        """(M, V) bool: for each token whether one that the draft model draws is replaced. `p`, `q`: (M, V),
        `most`: (M, 1)."""
        if self.rule == "token-v1":
            return q < most - self.alpha
        if self.rule == "token-v2":
            return p < most - self.alpha
        return p < (1 - self.alpha) * most
