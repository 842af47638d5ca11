"""Temperature and truncation: from logits to a distribution.

Order and definitions are those of transformers' processors: temperature, top-k, top-p (the fewest most
probable tokens whose mass reaches `top_p`), min-p (tokens with at least `min_p` times the largest
probability), typical-p (tokens whose information is nearest to the entropy, up to a mass of `typical_p`).

Letters: M rows of logits, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.sampling_params import SamplingParams
from outpace.sampling.topk import argmax, at_least_float32

HEAD = 1024  # number of most probable tokens tried for top-p before the whole vocabulary is sorted


def warp(logits: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:  # (M, V), M -> (M, V)
    """Distributions after temperature and truncation, at least float32, with the parameters `sampling[i]` for
    row i; temperature 0 gives one-hot rows."""
    # float32: verification compares probabilities, for which half precision is too coarse; float64 is kept
    logits = at_least_float32(logits)
    first = sampling[0]
    if all(each is first or _same(each, first) for each in sampling):
        return _warp(logits, first)
    return torch.cat([_warp(logits[row : row + 1], each) for row, each in enumerate(sampling)])


def _same(one: SamplingParams, other: SamplingParams) -> bool:
    settings = (one.temperature, one.top_k, one.top_p, one.min_p, one.typical_p)
    return settings == (other.temperature, other.top_k, other.top_p, other.min_p, other.typical_p)


def _warp(logits: Tensor, sampling: SamplingParams) -> Tensor:
    if sampling.greedy:
        return torch.zeros_like(logits).scatter_(1, argmax(logits)[:, None], 1)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        threshold = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    probs = logits.softmax(-1)
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
    if sampling.min_p > 0:
        probs = _kept(probs, probs >= sampling.min_p * probs.amax(-1, keepdim=True))
    if sampling.typical_p < 1:
        probs = _typical(probs, sampling.typical_p)
    return probs


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the tokens for which the mass of all more probable tokens is below `top_p`; renormalise."""
    # sorting a vocabulary of 128k takes longer than a small model's forward: the most probable tokens are
    # tried first
    values, ids = probs.topk(min(HEAD, probs.shape[-1]))
    if bool((values.sum(-1) < top_p).any()):
        values, ids = probs.sort(-1, descending=True)
    before = values.cumsum(-1) - values
    values = values.masked_fill(before >= top_p, 0)
    kept = torch.zeros_like(probs).scatter_(1, ids, values)
    return kept / kept.sum(-1, keepdim=True)


def _typical(probs: Tensor, mass: float) -> Tensor:
    """Keep the tokens whose information -log p is nearest to its mean, the entropy, until their total
    probability reaches `mass`; renormalise (locally typical sampling, Meister et al. 2023)."""
    information = -probs.log()
    mean = torch.where(probs > 0, probs * information, 0).sum(-1, keepdim=True)
    far, ids = (information - mean).abs().sort(-1)
    last = (probs.gather(1, ids).cumsum(-1) < mass).sum(-1, keepdim=True).clamp_(max=probs.shape[-1] - 1)
    # tokens at the same distance from the mean as the last one are kept too
    far = far.masked_fill(far > far.gather(1, last), float("inf"))
    return _kept(probs, torch.zeros_like(probs).scatter_(1, ids, (far < float("inf")).to(probs.dtype)) > 0)


def _kept(probs: Tensor, keep: Tensor) -> Tensor:
    probs = torch.where(keep, probs, 0)
    return probs / probs.sum(-1, keepdim=True)
