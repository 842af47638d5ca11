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
    acceptance_length: float  # tokens per step with greedy chains of len(agreement) draft tokens
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
    """How well a predictor plans the length of drafts. Means over the positions of texts, in tokens."""

    longest: float  # accepted draft tokens if every draft has full length
    planned: float  # draft tokens with the predicted lengths
    accepted: float  # of these, accepted
    error: float  # absolute difference of predicted length and accepted tokens of a full draft
    constant_error: float  # the same error with the best constant length

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
    """How well a predictor predicts which draft tokens are accepted."""

    acceptance: float  # share of the draft tokens that are accepted
    f1: float  # F1 of the class "rejected", at the best threshold of the prediction
    probability_f1: float  # the same with the token's draft probability in place of the prediction
    calibration_error: float  # expected calibration error, with rejections weighted as in the loss

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
class ClassifierEvaluation(Evaluation):
    """How well a predictor tells tokens to accept from others. It accepts those of a predicted probability
    above 0.5."""

    share: float  # of the tokens that are to be accepted
    accepted: float  # share of these that it accepts
    let_through: float  # share of the others that it accepts
    auc: float  # probability that a token to accept has a higher prediction than another one

    @property
    def accuracy(self) -> float:
        """Share of the tokens that are classified as they should be."""
        return self.share * self.accepted + (1 - self.share) * (1 - self.let_through)

    @property
    def f1(self) -> float:
        """F1 of the class of tokens that are not to be accepted; 0 without any."""
        found, missed = (1 - self.share) * (1 - self.let_through), (1 - self.share) * self.let_through
        return 2 * found / max(1e-12, 2 * found + missed + self.share * (1 - self.accepted))

    @property
    def brief(self) -> str:
        return f"held-out F1 {self.f1:.3f}"

    @property
    def findings(self) -> list[str]:
        return [
            f"of the held-out tokens to accept, {self.share:.0%} of all, it accepts {self.accepted:.1%} and "
            f"of the others {self.let_through:.1%}",
            f"held-out AUC {self.auc:.3f}, F1 of the others {self.f1:.3f}",
        ]


@dataclass(frozen=True)
class RollbackEvaluation(Evaluation):
    """How well a predictor foresees what the target accepts of drafts."""

    right: float  # share of the drafts whose class it foresees
    shares: tuple[float, float, float]  # of drafts of which none, some and all tokens are accepted

    @property
    def brief(self) -> str:
        return f"held-out share of right predictions {self.right:.2f}"

    @property
    def findings(self) -> list[str]:
        none, some, every = self.shares
        return [
            f"{self.right:.0%} of the held-out predictions are right; the same answer each time would be in "
            f"{max(self.shares):.0%}",
            f"of {none:.0%} of the held-out drafts no token is accepted, of {some:.0%} some are, of "
            f"{every:.0%} all",
        ]


@dataclass(frozen=True)
class RevealEvaluation(Evaluation):
    """What drafts of windows cost and gain. Means of drafts of the most probable tokens."""

    accepted: float  # tokens that equal the text's, up to the first other one
    forwards: float
    # the same if tokens are revealed by their draft probability alone
    confident_accepted: float
    confident_forwards: float

    @property
    def brief(self) -> str:
        return f"held-out {self.accepted:.2f} tokens in {self.forwards:.2f} forwards"

    @property
    def findings(self) -> list[str]:
        return [
            f"held-out drafts have {self.accepted:.2f} accepted tokens in {self.forwards:.2f} forwards; "
            f"where all probable tokens are revealed, {self.confident_accepted:.2f} in "
            f"{self.confident_forwards:.2f}"
        ]


@dataclass(frozen=True)
class ExitEvaluation(Evaluation):
    """What early exits would do at the usual threshold, with all layers checked."""

    agreement: float  # share of tokens whose prediction at the exit is the last layer's
    mean_depth: float  # mean number of layers that a token runs through
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
