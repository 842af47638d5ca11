"""Judge Decoding's predictor (Bachmann et al. 2025): whether a token is right, although it may not be the
target's own choice, from the target's hidden state after reading it.

Letters: M tokens, D hidden size of the target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outpace.core.contracts import Target, TargetWithLayers
from outpace.models.predictors.kinds import PredictorKind
from outpace.models.predictors.predictor import Predictor, PredictorError, hidden_size

SPREAD = 3.0  # approximate standard deviation of untrained predictions, in logits


class JudgePredictor(Predictor):
    """A linear layer on the state at the input of the target's LM head."""

    method = "judge-decoding"
    noun, drafter, option = "judge", "target", "judge"

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.output = nn.Linear(hidden_size, 1)

    @property
    def sizes(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size}

    def forward(self, hidden: Tensor) -> Tensor:  # (M, D) -> (M,)
        """The logarithm of the odds that each token is right."""
        return self.output(hidden)[:, 0]

    def right(self, hidden: Tensor) -> list[float]:  # (M, D) -> (M,)
        """The probability that each token is right."""
        return self(hidden.to(self.output.weight)).sigmoid().tolist()

    def prepare(self, target: Target) -> None:
        """Move to the device of the target. PredictorError unless the judge suits it."""
        size = hidden_size(target, "the judge", "target")
        if size != self.hidden_size:
            raise PredictorError(
                f"the judge is for a target with hidden states of {self.hidden_size} numbers, and this one's "
                f"have {size}: give the target that it was trained for"
            )
        self.check_trained_for(None, target)
        assert isinstance(target, TargetWithLayers)
        self.to(next(target.embed.parameters()).device)

    @classmethod
    def training_command(cls) -> str:
        return f"`outpace train {cls.method} --target TARGET --data FILE --output FOLDER`"


def untrained_judge(target: Target, seed: int = 0) -> JudgePredictor:
    """A judge with random weights, which finds about half of the tokens right."""
    judge = JudgePredictor(hidden_size(target, "the judge", "target"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        drawn = torch.randn(judge.output.weight.shape, generator=generator)
        judge.output.weight.copy_(SPREAD * drawn * judge.hidden_size**-0.5)
        judge.output.bias.zero_()
    return judge.eval()


KIND = PredictorKind(
    JudgePredictor,
    "Judge Decoding",
    "2501.19309",
    # with this seed it approves of tokens that the small models of proofs draft
    lambda target, draft: untrained_judge(target, seed=4),
)
