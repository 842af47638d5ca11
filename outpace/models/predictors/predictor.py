"""What acceptance predictors share: the pair of models that one was trained for and is checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from outpace.core.contracts import Target, TargetWithLayers
from outpace.models.heads.fingerprint import target_fingerprint


class PredictorError(ValueError):
    """A folder holds no predictor that can be used, or a predictor does not fit the models; the message is
    for users."""


@dataclass(frozen=True)
class Pair:
    """Fingerprints of a draft model and of the target that verifies its tokens."""

    draft: str
    target: str


class AcceptancePredictor(nn.Module):
    """Predicts whether a draft token is accepted, given that those before it in the draft are."""

    method: ClassVar[str]  # name of the method that uses it and of `outpace train`
    trained_for: Pair | None = None  # None: for no known models, as untrained ones

    @property
    def sizes(self) -> dict[str, Any]:
        """The arguments with which its class makes one of the same sizes."""
        raise NotImplementedError

    def prepare(self, draft: Target, target: Target) -> None:
        """Move to the device of the draft model. PredictorError unless the predictor suits these models."""
        self.check(draft, target)
        if isinstance(draft, TargetWithLayers):
            self.to(next(draft.embed.parameters()).device)

    def check(self, draft: Target, target: Target) -> None:
        """PredictorError if the predictor was trained for another draft model or target."""
        if self.trained_for is None:
            return
        for what, model, fingerprint in (
            ("draft model", draft, self.trained_for.draft),
            ("target", target, self.trained_for.target),
        ):
            if isinstance(model, TargetWithLayers) and target_fingerprint(model) != fingerprint:
                raise PredictorError(
                    f"the predictor was trained for another {what}: give the models that it was trained for, "
                    f"or train one for these with {self.training_command()}"
                )

    @classmethod
    def training_command(cls) -> str:
        """The command that makes a predictor of this class."""
        return f"`outpace train {cls.method} --target TARGET --draft DRAFT --output FOLDER`"
