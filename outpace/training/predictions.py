"""Quality of predicted acceptance: F1, area under the curve and calibration.

Letters: N draft tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

NUM_BINS = 10  # of predictions, equally wide


def best_f1(scores: Tensor, accepted: Tensor) -> float:  # (N,), (N,) probabilities of being accepted
    """The largest F1 over all thresholds of the score, at or below which a token is classified as rejected:
    2 TP / (2 TP + FP + FN), with expected numbers of tokens. 0 without rejections."""
    scores, order = scores.sort()
    rejected = 1 - accepted[order].double()
    # 2 TP + FP + FN: number of tokens classified as rejected plus number of rejected tokens
    called = torch.arange(1, len(scores) + 1, device=scores.device)
    f1 = 2 * rejected.cumsum(0) / (called + rejected.sum())
    # tokens of equal scores are on the same side of a threshold
    is_last = torch.ones_like(scores, dtype=torch.bool)
    is_last[:-1] = scores[1:] > scores[:-1]
    return float(f1[is_last].max()) if len(scores) else 0.0


def auc(scores: Tensor, accepted: Tensor) -> float:  # (N,), (N,) bool
    """The probability that an accepted token has a higher score than a rejected one, ties counted half: the
    area under the ROC curve. 0.5 if all are accepted, or none."""
    scores, accepted = scores.double().cpu(), accepted.cpu()
    values, place = scores.unique(return_inverse=True)
    rejected = torch.zeros(len(values)).double().index_add(0, place, (~accepted).double())
    below = rejected.cumsum(0) - rejected / 2  # rejected tokens of lower scores, those of equal ones half
    pairs = int(accepted.sum()) * int((~accepted).sum())
    return float(below[place][accepted].sum()) / pairs if pairs else 0.5


def calibration_error(
    predicted: Tensor, accepted: Tensor, rejection_weight: float = 1.0
) -> float:  # (N,), (N,) probabilities of being accepted
    """Expected calibration error: the mean over tokens of the distance between mean prediction and share of
    accepted tokens, in bins of predictions. A rejection counts `rejection_weight` times, as in the loss by
    which the predictor was trained."""
    weights = accepted + rejection_weight * (1 - accepted)
    place = (predicted * NUM_BINS).long().clamp(0, NUM_BINS - 1)

    def by_bin(values: Tensor) -> Tensor:
        return torch.zeros(NUM_BINS, dtype=torch.float64).index_add(0, place.cpu(), values.double().cpu())

    gaps = (by_bin(weights * predicted) - by_bin(accepted)).abs()
    return float(gaps.sum() / weights.double().sum().clamp_min(1e-12).cpu())
