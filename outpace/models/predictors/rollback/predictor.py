"""SpecBranch's predictor (Shen et al. 2025), there called H-RAD: whether the target will reject the first
token of a draft, accept all of it, or neither, before it reads the draft.

Letters: M drafts, K layers, D hidden size of the target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from outpace.core.contracts import Target, TargetWithLayers
from outpace.models.predictors.kinds import PredictorKind
from outpace.models.predictors.predictor import AcceptancePredictor, PredictorError

NONE, SOME, ALL = range(3)  # the classes: tokens of the draft that are accepted
WIDTHS = (256, 64)  # of the inner layers
LAYERS, DEPTH = 4, 4  # of untrained predictors; fewer layers where the target has fewer
DROPOUT = 0.2  # share of the inner layers' outputs that are set to 0 while it learns


class RollbackPredictor(AcceptancePredictor):
    """Three linear layers with ReLU on the outputs of the target's last layers at the last token that it has
    read, and the embedding of the token after it, which is committed."""

    method = "specbranch"
    noun = "rollback predictor"

    def __init__(self, hidden_size: int, num_layers: int, depth: int) -> None:
        """`num_layers`: of the target, from the last; `depth`: tokens of a draft, of which the first is
        committed when the predictor is asked about the others."""
        super().__init__()
        self.hidden_size, self.num_layers, self.depth = hidden_size, num_layers, depth
        self.first = nn.Linear((num_layers + 1) * hidden_size, WIDTHS[0])
        self.second = nn.Linear(*WIDTHS)
        self.output = nn.Linear(WIDTHS[1], 3)

    @property
    def sizes(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size, "num_layers": self.num_layers, "depth": self.depth}

    def layers(self, target: TargetWithLayers) -> list[int]:
        """The layers whose outputs it reads, ascending."""
        return list(range(target.num_layers - self.num_layers, target.num_layers))

    def forward(self, features: Tensor, noise: torch.Generator | None = None) -> Tensor:
        """(M, (K + 1) * D) -> (M, 3) logits of the classes. `features`: the outputs of the layers, then the
        embedding; `noise`: with dropout, while it learns."""
        inner = features.to(self.output.weight)
        for layer in (self.first, self.second):
            inner = _dropped(relu(layer(inner)), noise)
        return self.output(inner)

    def classes(self, features: Tensor) -> list[int]:  # (M, (K + 1) * D) -> (M,)
        """The most probable class of each draft."""
        return self(features).argmax(-1).tolist()

    def prepare(self, draft: Target, target: Target) -> None:
        """Move to the device of the target. PredictorError unless the predictor suits these models."""
        self.check(draft, target)
        assert isinstance(target, TargetWithLayers)
        self.to(next(target.embed.parameters()).device)

    def check(self, draft: Target, target: Target) -> None:
        if not isinstance(target, TargetWithLayers):
            raise PredictorError(
                f"the predictor needs a target with hidden states, not a {type(target).__name__}"
            )
        size = int(next(target.embed.parameters()).shape[1])
        if (size, self.num_layers) != (self.hidden_size, min(self.num_layers, target.num_layers)):
            raise PredictorError(
                f"the predictor reads {self.num_layers} layers with {self.hidden_size} numbers, and this "
                f"target has {target.num_layers} with {size}: give the target that it was trained for"
            )
        super().check(draft, target)
        if not all(bool(parameter.isfinite().all()) for parameter in self.parameters()):
            raise PredictorError(
                "the predictor has weights that are infinite or NaN: train it again with "
                f"{self.training_command()}"
            )


def _dropped(values: Tensor, noise: torch.Generator | None) -> Tensor:
    if noise is None:
        return values
    kept = torch.rand(values.shape, generator=noise) >= DROPOUT
    return values * kept.to(values) / (1 - DROPOUT)


def untrained_rollback_predictor(target: TargetWithLayers, seed: int = 0) -> RollbackPredictor:
    """A predictor for a target with random weights, which predicts all classes."""
    size = int(next(target.embed.parameters()).shape[1])
    predictor = RollbackPredictor(size, min(LAYERS, target.num_layers), DEPTH)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in predictor.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * (2 / parameter.shape[-1]) ** 0.5)
        # a rejection is foreseen where both others are improbable: in proofs drafts are accepted, too
        predictor.output.weight[NONE] = 0
        predictor.output.bias.zero_()
    return predictor.eval()


KIND = PredictorKind(
    RollbackPredictor,
    "SpecBranch",
    "2506.01979",
    lambda target, draft: untrained_rollback_predictor(target, seed=1),
)
