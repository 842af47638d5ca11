"""AdaEAGLE's predictor (Zhang et al. 2024): how many tokens of a head's next draft will be accepted, from the
last token that the target has read.

Letters: M positions, D hidden size of the target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outpace.core.contracts import Target, TargetWithLayers
from outpace.models.heads.fingerprint import head_fingerprint
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.position_head import ResidualBlocks
from outpace.models.predictors.kinds import PredictorKind
from outpace.models.predictors.predictor import Predictor, PredictorError

DEPTH = 4  # longest draft of untrained predictors
NUM_RANDOM = 256  # number of random inputs to which an untrained predictor is scaled
MEAN, SPREAD = 2.0, 1.5  # mean and standard deviation of its predictions for these, in tokens


class DraftLengthPredictor(Predictor):
    """Three layers with SiLU and a linear layer with one output. The first maps the token's embedding and the
    target's hidden state after it, at the input of the LM head, to D numbers; the others are residual blocks.
    (The paper has "a 3-layer residual MLP" and does not give its widths.)"""

    method = "adaeagle"
    noun, drafter, option = "length predictor", "head", "head"

    def __init__(self, hidden_size: int, depth: int, num_layers: int = 3) -> None:
        """`depth`: the longest draft that it predicts."""
        super().__init__()
        self.hidden_size, self.depth, self.num_layers = hidden_size, depth, num_layers
        self.inner = nn.Linear(2 * hidden_size, hidden_size)
        self.blocks = ResidualBlocks(hidden_size, num_layers - 1)
        self.output = nn.Linear(hidden_size, 1)

    @property
    def sizes(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size, "depth": self.depth, "num_layers": self.num_layers}

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:  # (M, D), (M, D) -> (M,)
        """The expected numbers of accepted tokens, not rounded. `embedded`: the target's embeddings of
        tokens; `hidden`: the target's hidden states after them."""
        weight = self.output.weight
        both = torch.cat((embedded.to(weight), hidden.to(weight)), -1)
        return self.output(self.blocks(nn.functional.silu(self.inner(both))))[:, 0]

    def lengths(self, embedded: Tensor, hidden: Tensor) -> Tensor:  # (M, D), (M, D) -> (M,) int64
        """Numbers of tokens to draft, from 0 to `depth`."""
        return self(embedded, hidden).round().clamp(0, self.depth).long()

    def prepare(self, opened: HeadModel, target: Target) -> None:
        """Move to the device of the target. PredictorError unless the predictor suits the head and the
        target."""
        if not isinstance(target, TargetWithLayers):
            raise PredictorError(
                f"the predictor needs a target with hidden states, not a {type(target).__name__}"
            )
        weight = next(target.embed.parameters())
        if weight.shape[1] != self.hidden_size:
            raise PredictorError(
                f"the predictor is for a target with hidden states of {self.hidden_size} numbers, and this "
                f"one's have {weight.shape[1]}: give the target that it was trained for"
            )
        if self.trained_for is not None:
            self.check_trained_for(head_fingerprint(opened.head), target)
        self.to(weight.device)


def untrained_draft_length_predictor(target: TargetWithLayers, seed: int = 0) -> DraftLengthPredictor:
    """A predictor for a target with random weights, whose predictions for random tokens and states have
    a mean of `MEAN` and a standard deviation of `SPREAD`."""
    weight = next(target.embed.parameters())
    predictor, generator = DraftLengthPredictor(weight.shape[1], DEPTH), torch.Generator().manual_seed(seed)
    tokens = torch.randint(target.vocab, (NUM_RANDOM,), generator=generator)
    hidden = torch.randn(NUM_RANDOM, weight.shape[1], generator=generator)
    with torch.no_grad():
        for parameter in predictor.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn * parameter.shape[-1] ** -0.5)
        predicted = predictor(target.embed(tokens.to(weight.device)).cpu(), hidden)
        scale = SPREAD / predicted.std()
        predictor.output.weight *= scale
        predictor.output.bias.copy_((predictor.output.bias - predicted.mean()) * scale + MEAN)
    return predictor.eval()


KIND = PredictorKind(
    DraftLengthPredictor,
    "AdaEAGLE",
    "2412.18910",
    lambda target, draft: untrained_draft_length_predictor(target),
)
