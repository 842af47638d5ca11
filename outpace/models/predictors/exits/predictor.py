"""SpecEE's predictor (Xu et al. 2025): whether the most probable token after a layer is already the last
layer's, from the probabilities of a few candidate tokens.

Letters: M tokens, C candidates, H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outpace.core.contracts import Target
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.fingerprint import head_fingerprint
from outpace.models.predictors.kinds import PredictorKind
from outpace.models.predictors.predictor import Predictor, PredictorError

NUM_CANDIDATES = 4
SPREAD = 2.0  # standard deviation of untrained predictions, in logits


class ExitPredictor(Predictor):
    """Two linear layers with a ReLU between them for each layer of the target but the last, on the features
    of `features`."""

    method = "specee"
    noun, drafter, option = "predictor of early exits", "head", "head"

    def __init__(self, num_exits: int, width: int = 512, layers: Sequence[int] = ()) -> None:
        """`layers`: layers that are checked for every token, counted from 1."""
        super().__init__()
        self.layers = frozenset(layers)
        size = 3 * NUM_CANDIDATES
        self.inner = nn.Parameter(torch.zeros(num_exits, size, width))
        self.inner_bias = nn.Parameter(torch.zeros(num_exits, width))
        self.output = nn.Parameter(torch.zeros(num_exits, width))
        self.output_bias = nn.Parameter(torch.zeros(num_exits))

    @property
    def sizes(self) -> dict[str, Any]:
        width, layers = self.output.shape[1], sorted(self.layers)
        return {"num_exits": self.num_exits, "width": width, "layers": layers}

    @property
    def num_exits(self) -> int:
        return len(self.output_bias)

    def check(self, head: DraftHead, target: Target) -> None:
        """PredictorError if the predictor was made for another target, or trained with candidates of another
        head."""
        if int(getattr(target, "num_layers", 0)) != self.num_exits + 1:
            raise PredictorError(
                f"the predictor was trained for another target, of {self.num_exits + 1} layers: give that "
                f"one, or train a predictor for this one with {self.training_command()}"
            )
        self.check_trained_for(head_fingerprint(head), target)

    def log_odds(self, given: Tensor, layer: int) -> Tensor:  # (M, 3 C) -> (M,)
        """The logarithm of the odds that the most probable token after `layer` layers, counted from 1, is the
        last layer's."""
        index = layer - 1
        hidden = (given.to(self.inner) @ self.inner[index] + self.inner_bias[index]).relu()
        return hidden @ self.output[index] + self.output_bias[index]

    @torch.no_grad()
    def probability(self, given: Tensor, layer: int) -> Tensor:  # (M, 3 C) -> (M,)
        """The same as a probability."""
        return self.log_odds(given, layer).sigmoid()


def features(logits: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """(M, C) logits of the candidates after a layer -> (M, 3 C) logits, probabilities among the candidates
    and their change since the previously checked layer; and the probabilities (M, C). `before`: the
    probabilities at that layer; None: no layer was checked."""
    logits = logits.to(torch.promote_types(torch.float32, logits.dtype))
    probs = logits.softmax(-1)
    given = torch.cat((logits, probs, probs if before is None else probs - before), -1)
    missing = 3 * NUM_CANDIDATES - given.shape[-1]  # a vocabulary of fewer tokens
    return nn.functional.pad(given, (0, missing)), probs


def untrained_exit_predictor(target: Target, seed: int = 0) -> ExitPredictor:
    """A predictor with random weights, whose predictions differ much between tokens and layers. It has exits
    for more layers than any target of a proof."""
    num_layers = int(getattr(target, "num_layers", 4))
    predictor = ExitPredictor(num_layers - 1, 32, range(1, num_layers, 2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        predictor.output *= SPREAD / predictor.output.shape[-1] ** 0.5
    return predictor.double().eval()


KIND = PredictorKind(
    ExitPredictor,
    "SpecEE",
    "2504.08850",
    lambda target, draft: untrained_exit_predictor(target),
)
