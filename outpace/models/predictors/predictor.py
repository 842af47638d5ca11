"""Base classes of predictors, which check the pair of models that a predictor was trained for.

Letters: M tokens, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from outpace.core.contracts import Target, TargetWithLayers
from outpace.models.fingerprint import target_fingerprint


class PredictorError(ValueError):
    """A folder holds no usable predictor, or a predictor does not fit the models. Messages are for users."""


@dataclass(frozen=True)
class Pair:
    """Fingerprints of a draft model or head and of the target that verifies its tokens."""

    draft: str | None  # None: of a predictor that suits any draft model
    target: str


class Predictor(nn.Module):
    """Predicts something about the drafts of a draft model or head."""

    method: ClassVar[str]  # name of the method that uses it and of `outpace train`
    noun: ClassVar[str]  # what it is called in messages
    drafter: ClassVar[str]  # what its draft model or head is called in messages
    option: ClassVar[str]  # name of the recipe option for the draft model or head
    trained_for: Pair | None = None  # None: unknown, as for untrained predictors

    @property
    def sizes(self) -> dict[str, Any]:
        """The constructor's arguments for a predictor of the same sizes."""
        raise NotImplementedError

    def check_trained_for(self, drafter: str | None, target: Target) -> None:
        """PredictorError if the predictor was trained for another target, or for a draft model or head with
        another fingerprint than `drafter`; None: it is unknown."""
        if self.trained_for is None:
            return
        own = target_fingerprint(target) if isinstance(target, TargetWithLayers) else None
        for what, given, expected in (
            (self.drafter, drafter, self.trained_for.draft),
            ("target", own, self.trained_for.target),
        ):
            if given is not None and given != expected:
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
    """Predicts something about single tokens of a draft model, most often whether one is accepted, given that
    the preceding draft tokens are."""

    noun, drafter, option = "acceptance predictor", "draft model", "draft"

    def prepare(self, draft: Target, target: Target) -> None:
        """Move to the device of the draft model. PredictorError unless the predictor suits these models."""
        self.check(draft, target)
        if isinstance(draft, TargetWithLayers):
            self.to(next(draft.embed.parameters()).device)

    def check(self, draft: Target, target: Target) -> None:
        """PredictorError if the predictor was trained for another draft model or target."""
        if self.trained_for is not None:
            fingerprint = target_fingerprint(draft) if isinstance(draft, TargetWithLayers) else None
            self.check_trained_for(fingerprint, target)


class StatePredictor(AcceptancePredictor):
    """Answers a question about tokens that a draft model has read, such as whether one is accepted, from the
    hidden states after them."""

    hidden_size: int  # D

    def forward(self, hidden: Tensor) -> Tensor:  # (M, D) -> (M,)
        """The logarithm of the odds that the answer is yes."""
        raise NotImplementedError

    def probs(self, hidden: Tensor) -> list[float]:  # (M, D) -> (M,)
        """The probability that the answer is yes."""
        return self(hidden.to(next(self.parameters()))).sigmoid().tolist()

    def check(self, draft: Target, target: Target) -> None:
        size = hidden_size(draft, "the predictor", "draft model")
        if size != self.hidden_size:
            raise PredictorError(
                f"the predictor is for a draft model with hidden states of {self.hidden_size} numbers, and "
                f"this one's have {size}: give the draft model that it was trained for"
            )
        super().check(draft, target)


def hidden_size(model: Target, needing: str, called: str) -> int:
    """D, the size of the states at the input of a model's LM head. PredictorError, which says what is
    `needing` them and what the model is `called`, if it has none."""
    if not isinstance(model, TargetWithLayers):
        raise PredictorError(f"{needing} needs a {called} with hidden states, not a {type(model).__name__}")
    return int(next(model.embed.parameters()).shape[1])
