"""SpecDec++'s predictor (Huang et al. 2025): whether the token that a draft model has just read is accepted,
from the hidden state after it.

Letters: M tokens, D hidden size of the draft model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outpace.core.contracts import Target
from outpace.models.heads.position_head import ResidualBlocks
from outpace.models.predictors.kinds import PredictorKind
from outpace.models.predictors.predictor import StatePredictor, hidden_size

SPREAD, LEANING = 3.0, 1.5  # approximate standard deviation, and mean, of untrained predictions, in logits


class HiddenStatePredictor(StatePredictor):
    """Residual blocks x + SiLU(linear(x)) and a linear layer with two outputs, rejected and accepted.

    Each block has its own weights; the reference implementation applies one block `num_layers` times.
    """

    method = "specdec-pp"

    def __init__(self, hidden_size: int, num_layers: int = 3) -> None:
        super().__init__()
        self.hidden_size, self.num_layers = hidden_size, num_layers
        self.blocks = ResidualBlocks(hidden_size, num_layers)
        self.output = nn.Linear(hidden_size, 2)

    @property
    def sizes(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size, "num_layers": self.num_layers}

    def forward(self, hidden: Tensor) -> Tensor:  # (M, D) -> (M,)
        """The logarithm of the odds that each token is accepted."""
        rejected, accepted = self.output(self.blocks(hidden)).unbind(-1)
        return accepted - rejected


def untrained_hidden_state_predictor(draft: Target, seed: int = 0) -> HiddenStatePredictor:
    """A predictor for a draft model with random weights, whose predictions differ much between tokens."""
    predictor = HiddenStatePredictor(hidden_size(draft, "the predictor", "draft model"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in predictor.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            width = predictor.hidden_size**-0.5
            parameter.copy_(drawn * (SPREAD * width if name.startswith("output") else width))
        predictor.output.bias.copy_(torch.tensor([0.0, LEANING]))
    return predictor.eval()


KIND = PredictorKind(
    HiddenStatePredictor,
    "SpecDec++",
    "2405.19715",
    lambda target, draft: untrained_hidden_state_predictor(draft),
)
