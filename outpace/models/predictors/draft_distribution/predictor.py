"""DISCO's predictor (Mamou et al. 2024): whether a draft token is accepted, from the distribution that it is
drawn from and its position in the draft.

Letters: M tokens, K tokens of the draft model's vocabulary, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outpace.core.contracts import Target
from outpace.models.predictors.kinds import PredictorKind
from outpace.models.predictors.predictor import AcceptancePredictor

NUM_PROBS = 10  # number of highest token probabilities that are features
NUM_FEATURES = NUM_PROBS + 2
POSITIONS = 20  # positions are divided by this, the length of a long draft
NUM_RANDOM = 256  # number of random distributions to which an untrained predictor is scaled
MEAN, SPREAD = 1.0, 2.0  # mean and standard deviation of its predictions for these, in logits


class DraftDistributionPredictor(AcceptancePredictor):
    """Two linear layers with a ReLU between them on the features of `features`."""

    method = "disco"

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.inner, self.output = nn.Linear(NUM_FEATURES, width), nn.Linear(width, 1)

    @property
    def sizes(self) -> dict[str, Any]:
        return {"width": self.width}

    def forward(self, features: Tensor) -> Tensor:  # (M, F) -> (M,)
        """The logarithm of the odds that each token is accepted."""
        return self.output(self.inner(features).relu())[:, 0]

    def acceptance(self, logits: Tensor, positions: Sequence[int]) -> list[float]:  # (M, K), (M,) -> (M,)
        """The probability that a token drawn after these logits is accepted, given its position in its draft,
        from 1."""
        given = features(logits, torch.tensor(positions, device=logits.device))
        return self(given.to(self.output.weight)).sigmoid().tolist()


def features(logits: Tensor, positions: Tensor) -> Tensor:  # (M, K), (M,) -> (M, F)
    """The highest token probabilities in decreasing order, padded with zeros for small vocabularies; the
    entropy in nats; the position in the draft. The distribution is the draft model's before sampling
    parameters, in training and in decoding, so that features do not depend on a request's parameters."""
    probs = logits.float().softmax(-1)
    entropy = torch.special.entr(probs).sum(-1, keepdim=True)
    most = probs.topk(min(NUM_PROBS, probs.shape[-1]), -1).values
    most = nn.functional.pad(most, (0, NUM_PROBS - most.shape[-1]))
    return torch.cat((most, entropy, positions[:, None].to(probs) / POSITIONS), -1)


def untrained_draft_distribution_predictor(draft: Target, seed: int = 0) -> DraftDistributionPredictor:
    """A predictor with random weights, whose predictions for distributions over the draft model's tokens have
    a mean of `MEAN` and a standard deviation of `SPREAD`, in logits."""
    predictor, generator = DraftDistributionPredictor(), torch.Generator().manual_seed(seed)
    given = features(
        torch.randn(NUM_RANDOM, draft.vocab, generator=generator),
        torch.randint(1, POSITIONS, (NUM_RANDOM,), generator=generator),
    )
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        predicted = predictor(given)
        scale = SPREAD / predicted.std()
        predictor.output.weight *= scale
        predictor.output.bias.copy_((predictor.output.bias - predicted.mean()) * scale + MEAN)
    return predictor.eval()


KIND = PredictorKind(
    DraftDistributionPredictor,
    "DISCO",
    "2405.04304",
    lambda target, draft: untrained_draft_distribution_predictor(draft),
)
