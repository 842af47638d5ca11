"""What a run measures on held-out texts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluation:
    """Measurements at one step of a run."""

    step: int

    @property
    def brief(self) -> str:
        """The number to follow while training."""
        raise NotImplementedError

    @property
    def findings(self) -> list[str]:
        """All numbers, in a few lines."""
        raise NotImplementedError


@dataclass(frozen=True)
class DrafterEvaluation(Evaluation):
    """How often a drafter agrees with the target."""

    acceptance: float  # probability that a first draft token, drawn at temperature 1, is accepted
    acceptance_length: float  # tokens per step of a greedy chain of as many tokens as there are `agreement`s
    agreement: tuple[float, ...]  # share of drafts whose first 1, 2, ... tokens are all the target's

    @property
    def brief(self) -> str:
        return f"held-out acceptance length {self.acceptance_length:.2f}"

    @property
    def findings(self) -> list[str]:
        shares = ", ".join(f"{share:.0%}" for share in self.agreement)
        return [
            f"held-out acceptance length of greedy chains {self.acceptance_length:.2f} ({shares})",
            f"a drawn token is accepted with probability {self.acceptance:.2f}",
        ]


@dataclass(frozen=True)
class LengthEvaluation(Evaluation):
    """How well a predictor knows how long drafts should be. Means over the positions of texts, in tokens."""

    longest: float  # draft tokens that are accepted if the draft is as long as it may be
    planned: float  # draft tokens that are drafted
    accepted: float  # of these
    error: float  # distance of the drafted from the longest
    constant_error: float  # the same for the constant length for which it is least

    @property
    def brief(self) -> str:
        return f"held-out error {self.error:.2f} tokens"

    @property
    def findings(self) -> list[str]:
        return [
            f"held-out drafts are {self.error:.2f} tokens too long or too short in the mean, with the best "
            f"constant length {self.constant_error:.2f}",
            f"of {self.planned:.2f} draft tokens {self.accepted:.2f} are accepted; of the longest drafts "
            f"{self.longest:.2f} are",
        ]


@dataclass(frozen=True)
class PredictorEvaluation(Evaluation):
    """How well a predictor knows which draft tokens are accepted."""

    acceptance: float  # share of the draft tokens that are accepted
    f1: float  # of calling tokens rejected, at the threshold of the prediction where it is largest
    probability_f1: float  # the same with the draft probability of the token in place of the prediction
    calibration_error: float  # mean distance of predicted and weighted shares of accepted tokens

    @property
    def brief(self) -> str:
        return f"held-out F1 {self.f1:.3f}"

    @property
    def findings(self) -> list[str]:
        return [
            f"held-out rejections are foreseen with F1 {self.f1:.3f}, and with {self.probability_f1:.3f} by "
            "the draft probability alone",
            f"held-out calibration error {self.calibration_error:.3f}",
            f"{self.acceptance:.0%} of the held-out draft tokens are accepted",
        ]


@dataclass(frozen=True)
class ExitEvaluation(Evaluation):
    """What early exits would do at the usual threshold, with all layers checked."""

    agreement: float  # share of tokens whose prediction at the exit is that of the last layer
    mean_depth: float  # layers that a token runs through
    num_layers: int

    @property
    def brief(self) -> str:
        return f"held-out agreement {self.agreement:.3f} at a mean depth of {self.mean_depth:.2f}"

    @property
    def findings(self) -> list[str]:
        return [
            f"{self.agreement:.1%} of the held-out predictions are the last layer's, after "
            f"{self.mean_depth:.2f} of {self.num_layers} layers in the mean"
        ]
