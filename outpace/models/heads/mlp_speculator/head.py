"""The MLP speculator (Wertheimer et al. 2024): a state that each drafted token updates, with separate weights
for every step.

Letters: M nodes of one depth, D hidden size of the target, I inner size, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.position_head import PositionHead, random_parameters

EPSILON = 1e-6


class ScaledNorm(nn.Module):
    """The state divided by its root mean square, without subtraction of its mean; then scaled and shifted,
    unlike an RMSNorm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, states: Tensor) -> Tensor:
        return normed(states) * self.weight + self.bias


def normed(states: Tensor) -> Tensor:
    """The states divided by their root mean squares."""
    return states * (states.square().mean(-1, keepdim=True) + EPSILON).rsqrt()


class MlpSpeculatorHead(PositionHead):
    """Step i reads the token at depth i: s = GELU(norm_i(proj_i(s) + w · emb_i(token))), logits = head_i(s).
    Initially s is the target's hidden state; w is chosen so that after the last step half of the squared norm
    of s still comes from it."""

    method = "mlp-speculator"

    def __init__(
        self,
        target: TargetWithLayers,
        num_steps: int,
        inner_size: int,
        *,
        # all steps have the same embedding, norm and LM head, and all but the first the same projection
        tied: bool = False,
        scale_input: bool = False,  # the hidden state is normed and divided by √2
    ) -> None:
        super().__init__(target, num_steps)
        self.inner_size, self.tied, self.scale_input = inner_size, tied, scale_input
        steps = range(num_steps)
        self.emb = nn.ModuleList(_each(tied, [nn.Embedding(self.vocab, inner_size) for _ in steps]))
        sizes = [inner_size if step else self.hidden_size for step in steps]
        proj = [nn.Linear(size, inner_size, bias=False) for size in sizes]
        self.proj = nn.ModuleList([*proj[:1], *_each(tied, proj[1:])])
        self.ln = nn.ModuleList(_each(tied, [ScaledNorm(inner_size) for _ in steps]))
        self.head = nn.ModuleList(_each(tied, [nn.Linear(inner_size, self.vocab, bias=False) for _ in steps]))
        of_state = 0.5 ** (0.5 / num_steps)
        self.token_scale = math.sqrt((1 - of_state**2) * inner_size / 2) / of_state

    def begin(self, hidden: Tensor) -> Tensor:
        return normed(hidden) / math.sqrt(2) if self.scale_input else hidden

    def forward(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        sums = self.proj[depth](states) + self.token_scale * self.emb[depth](tokens)
        states = nn.functional.gelu(self.ln[depth](sums))
        return self.head[depth](states), states


def _each(tied: bool, modules: Sequence[nn.Module]) -> list[nn.Module]:
    return [*modules[:1]] * len(modules) if tied else [*modules]


def untrained_mlp_speculator(target: TargetWithLayers, seed: int = 0) -> PositionHead:
    """Three steps for a target, with an inner size of twice the hidden size and random weights."""
    size = int(next(target.embed.parameters()).shape[1])
    return random_parameters(MlpSpeculatorHead(target, 3, 2 * size), seed)
