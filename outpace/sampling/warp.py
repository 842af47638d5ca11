"""Temperature and truncation: from logits to a distribution.

Order and definitions are those of transformers' processors: temperature, then the truncations in the order in
which `core/sampling_params.py` declares them. All but top-k are functions of a distribution, see `CUTS`.

Letters: M rows of logits, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from outpace.core.sampling_params import SamplingParams
from outpace.sampling.topk import argmax, at_least_float32, top

# Numbers of most probable tokens tried for top-p before the whole vocabulary is sorted, which for 152,000
# tokens takes longer than a small model's forward.
HEAD, GROWTH = 64, 16  # the first one, and the factor to the next
# Logits looked at beyond the k largest, because top-k keeps all that equal the k-th: in bfloat16 many are
# equal.
EQUAL = 16


def warp(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:  # (M, V), M -> (M, V)
    """Distributions after temperature and truncation, at least float32, with the parameters `sampling[i]` for
    row i; temperature 0 gives one-hot rows."""
    # float32: verification compares probabilities, for which half precision is too coarse; float64 is kept
    wide = at_least_float32(logits)
    first, is_copy = sampling[0], wide is not logits
    if all(each is first or _same(each, first) for each in sampling):
        return _warp(wide, first, is_copy)
    return torch.cat([_warp(wide[row : row + 1], each, is_copy) for row, each in enumerate(sampling)])


def _same(one: SamplingParams, other: SamplingParams) -> bool:
    return one.temperature == other.temperature and one.truncations == other.truncations


def _warp(logits: Tensor, sampling: SamplingParams, is_copy: bool) -> Tensor:
    """`is_copy`: `logits` may be changed. New memory for a row of 152,000 numbers takes longer than most
    operations on them, so that memory is used again."""
    if sampling.greedy:
        return torch.zeros_like(logits).scatter_(1, argmax(logits)[:, None], 1)
    if sampling.temperature != 1:
        logits = logits.div_(sampling.temperature) if is_copy else logits / sampling.temperature
        is_copy = True
    if 0 < sampling.top_k < logits.shape[-1]:
        return _top_k(logits, sampling, is_copy)
    return _truncated(logits.softmax(-1), sampling)


def _top_k(logits: Tensor, sampling: SamplingParams, is_copy: bool) -> Tensor:
    """The distribution after top-k and the truncations that follow it. As in transformers, top-k also keeps
    tokens whose logit equals the k-th largest."""
    count = sampling.top_k
    # on a GPU, finding out which rows are short would synchronise it
    if not logits.is_cpu or count + EQUAL > logits.shape[-1]:
        return _top_k_of_all(logits, sampling)
    values, ids = top(logits, count + EQUAL)
    threshold = values[:, count - 1 : count]
    # In most rows all tokens that top-k keeps are among these, and softmax needs no others. Not in rows
    # where still more logits equal the k-th largest, nor with NaN or +inf: those use the whole vocabulary.
    # This is decided row by row, so that a row's distribution does not depend on the rest of the batch.
    long = ~((threshold > values[:, -1:]) & values[:, :1].isfinite())[:, 0]
    others = _top_k_of_all(logits[long], sampling) if bool(long.any()) else None
    probs = _truncated(values.masked_fill(values < threshold, float("-inf")).softmax(-1), sampling)
    whole = logits.zero_() if is_copy else torch.zeros_like(logits)
    whole.scatter_(1, ids, probs)
    if others is not None:
        whole[long] = others
    return whole


def _top_k_of_all(logits: Tensor, sampling: SamplingParams) -> Tensor:
    threshold = logits.topk(sampling.top_k).values[:, -1:]
    return _truncated(logits.masked_fill(logits < threshold, float("-inf")).softmax(-1), sampling)


def _truncated(probs: Tensor, sampling: SamplingParams) -> Tensor:
    """`probs` after the truncations but top-k, in the same memory."""
    for name, value in sampling.truncations:
        if name in CUTS:
            probs = CUTS[name](probs, value)
    return probs


def _nucleus(probs: Tensor, top_p: float, head: int = HEAD) -> Tensor:
    """Keep the tokens for which the mass of all more probable tokens is below `top_p`; renormalise. `head`:
    number of most probable tokens that are sorted; rows for which they are too few are sorted further."""
    is_all = head >= probs.shape[-1]
    values, ids = probs.sort(-1, descending=True) if is_all else top(probs, head)
    reached = values.cumsum(-1)
    short = ~(reached[:, -1] >= top_p)  # also if it is NaN
    others = None
    if not is_all and bool(short.any()):
        others = _nucleus(probs[short], top_p, GROWTH * head)
    outside = reached - values >= top_p
    # the mass that is kept, as the last of the sums: the same whatever `head` is
    total = reached.masked_fill(outside, 0).amax(-1, keepdim=True)
    kept = probs.zero_().scatter_(1, ids, values.masked_fill_(outside, 0).div_(total))
    if others is not None:
        kept[short] = others
    return kept


def _min_p(probs: Tensor, share: float) -> Tensor:
    """Keep tokens with at least this share of the largest probability; renormalise."""
    return _without(probs, probs < share * probs.amax(-1, keepdim=True))


def _typical(probs: Tensor, mass: float) -> Tensor:
    """Keep the tokens whose information -log p is nearest to its mean, the entropy, until their total
    probability reaches `mass`; renormalise (locally typical sampling, Meister et al. 2023)."""
    information = -probs.log()
    mean = torch.where(probs > 0, probs * information, 0).sum(-1, keepdim=True)
    far, ids = (information - mean).abs().sort(-1)
    last = (probs.gather(1, ids).cumsum(-1) < mass).sum(-1, keepdim=True).clamp_(max=probs.shape[-1] - 1)
    # tokens at the same distance from the mean as the last one are kept too
    return _without(
        probs, torch.zeros_like(probs, dtype=torch.bool).scatter_(1, ids, far > far.gather(1, last))
    )


def _without(probs: Tensor, left_out: Tensor) -> Tensor:
    """Set the probabilities of the tokens in the mask `left_out` to 0 and renormalise, in place."""
    probs.masked_fill_(left_out, 0)
    return probs.div_(probs.sum(-1, keepdim=True))


# truncating parameter -> function of (M, V) distributions, which it may overwrite, and its value
CUTS: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "top_p": _nucleus,
    "min_p": _min_p,
    "typical_p": _typical,
}
