"""dUltra's planner (Chen et al. 2025): which masks of a window a diffusion model's forward replaces by the
tokens drawn in them, from the hidden states at the masks.

Letters: M masks, D hidden size of the draft model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outpace.core.contracts import Target
from outpace.models.heads.position_head import ResidualBlocks
from outpace.models.predictors.kinds import PredictorKind
from outpace.models.predictors.predictor import StatePredictor, hidden_size

SPREAD, LEANING = 3.0, -1.0  # approximate standard deviation, and mean, of untrained predictions, in logits


class RevealPlanner(StatePredictor):
    """A linear layer on a mask's hidden state and the share of its window's masks that are left, residual
    blocks x + SiLU(linear(x)), and a linear layer with one output. `probs` is the probability that the mask's
    token is revealed.

    The authors' planner is a block in which the masks also see one another. Here they do so in the draft
    model's layers alone.
    """

    method = "dultra"
    noun = "planner"

    def __init__(self, hidden_size: int, width: int = 32, num_layers: int = 1) -> None:
        super().__init__()
        self.hidden_size, self.width, self.num_layers = hidden_size, width, num_layers
        self.inner = nn.Linear(1 + hidden_size, width)
        self.blocks = ResidualBlocks(width, num_layers)
        self.output = nn.Linear(width, 1)

    @property
    def sizes(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size, "width": self.width, "num_layers": self.num_layers}

    def forward(self, hidden: Tensor) -> Tensor:  # (..., D + 1) -> (...)
        """The logarithm of the odds that each mask is revealed. `hidden`: what `with_shares` gives."""
        return self.output(self.blocks(nn.functional.silu(self.inner(hidden))))[..., 0]


def with_shares(hidden: Tensor, shares: Tensor) -> Tensor:  # (..., D), (...) -> (..., D + 1)
    """The hidden states at masks with the share of their window's masks that are left."""
    return torch.cat((hidden, shares[..., None].to(hidden)), -1)


def untrained_reveal_planner(draft: Target, seed: int = 0) -> RevealPlanner:
    """A planner for a draft model with random weights, which reveals some of the masks in each forward."""
    planner = RevealPlanner(hidden_size(draft, "the planner", "draft model"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in planner.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            width = parameter.shape[-1] ** -0.5
            parameter.copy_(drawn * (SPREAD * width if name.startswith("output") else width))
        planner.output.bias.fill_(LEANING)
    return planner.eval()


KIND = PredictorKind(
    RevealPlanner, "dUltra", "2512.21446", lambda target, draft: untrained_reveal_planner(draft)
)
