"""What predictors share: the pair of models that one was trained for and is checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from outpace.core.contracts import Target, TargetWithLayers
from outpace.models.fingerprint import target_fingerprint


class PredictorError(ValueError):
    """A folder holds no predictor that can be used, or a predictor does not fit the models; the message is
    for users."""


@dataclass(frozen=True)
class Pair:
    """Fingerprints of a draft model or head and of the target that verifies its tokens."""

    draft: str
    target: str


class Predictor(nn.Module):
    """Predicts something about the drafts of a draft model or head."""

    method: ClassVar[str]  # name of the method that uses it and of `outpace train`
    noun: ClassVar[str]  # what it is, in messages
    drafter: ClassVar[str]  # what drafts, in messages
    option: ClassVar[str]  # name of the option that is what drafts
    trained_for: Pair | None = None  # None: for no known models, as untrained ones

    @property
    def sizes(self) -> dict[str, Any]:
        """The arguments with which its class makes one of the same sizes."""
        raise NotImplementedError

    def check_trained_for(self, drafter: str | None, target: Target) -> None:
        """PredictorError if the predictor was trained for another target, or for what has another fingerprint
        than `drafter`; None: it is unknown."""
        if self.trained_for is None:
            return
        own = target_fingerprint(target) if isinstance(target, TargetWithLayers) else None
        for what, found, expected in (
            (self.drafter, drafter, self.trained_for.draft),
            ("target", own, self.trained_for.target),
        ):
            if found is not None and found != expected:
                raise PredictorError(
                    f"the predictor was trained for another {what}: give the models that it was trained for, "
                    f"or train one for these with {self.training_command()}"
                )

    @classmethod
    def training_command(cls) -> str:
        """The command that makes a predictor of this class."""
        given = f"--target TARGET --{cls.option} {cls.option.upper()} --output FOLDER"
        return f"`outpace train {cls.method} {given}`"


class AcceptancePredictor(Predictor):
    """Predicts whether a token of a draft model is accepted, given that those before it in the draft are."""

    noun, drafter, option = "acceptance predictor", "draft model", "draft"

    def prepare(self, draft: Target, target: Target) -> None:
        """Move to the device of the draft model. PredictorError unless the predictor suits these models."""
        self.check(draft, target)
        if isinstance(draft, TargetWithLayers):
            self.to(next(draft.embed.parameters()).device)

    def check(self, draft: Target, target: Target) -> None:
        """PredictorError if the predictor was trained for another draft model or target."""
        if self.trained_for is not None:
            found = target_fingerprint(draft) if isinstance(draft, TargetWithLayers) else None
            self.check_trained_for(found, target)
