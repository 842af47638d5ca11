"""SPRINTER's predictor (Zhong et al. 2025): whether the token that a draft model has just read can stay
without the target's test, from the hidden state after it.

Letters: M tokens, D hidden size of the draft model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outpace.core.contracts import Target
from outpace.models.predictors.kinds import PredictorKind
from outpace.models.predictors.predictor import StatePredictor, hidden_size

SPREAD, LEANING = 3.0, 2.5  # approximate standard deviation, and mean, of untrained predictions, in logits


class TrustPredictor(StatePredictor):
    """A linear layer. `probs` is the probability that the token is at least as probable for the target
    as for the draft model, so that the target would accept it for certain."""

    method = "sprinter"

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.output = nn.Linear(hidden_size, 1)

    @property
    def sizes(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size}

    def forward(self, hidden: Tensor) -> Tensor:  # (M, D) -> (M,)
        return self.output(hidden)[:, 0]


def untrained_trust_predictor(draft: Target, seed: int = 0) -> TrustPredictor:
    """A predictor for a draft model with random weights, which trusts most tokens."""
    predictor = TrustPredictor(hidden_size(draft, "the predictor", "draft model"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        drawn = torch.randn(predictor.output.weight.shape, generator=generator)
        predictor.output.weight.copy_(SPREAD * drawn * predictor.hidden_size**-0.5)
        predictor.output.bias.fill_(LEANING)
    return predictor.eval()


KIND = PredictorKind(
    TrustPredictor,
    "SPRINTER",
    "2502.04557",
    lambda target, draft: untrained_trust_predictor(draft),
)
