"""A head start for the embedding: which token follows which is counted, not learned.

A model that sees few tokens spends most of them on finding out what an n-gram table knows. The log-ratio of the
smoothed bigram distribution to the unigram distribution is factored into what a token says about the next one and how a token is
predicted; some of the embedding's dimensions start as the first, some as the second. Layers learn to carry one to the
other within a few steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SCALE = 0.08  # standard deviation: layers are trained in steps of 0.02, which must be small beside what they add to
CONSTANT = 4.0  # of the constant dimension, in SCALE


def bigram_log_ratio(ids: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:  # (T,) -> (V, V), (V,)
    """log p(next | token) / p(next), with Witten-Bell smoothing, and how often each token occurs."""
    pairs = ids[:-1] * vocabulary + ids[1:]
    counts = torch.bincount(pairs, minlength=vocabulary * vocabulary).view(vocabulary, vocabulary).float()
    total = counts.sum(1)
    followers = (counts > 0).sum(1)
    unigram = (counts.sum(0) + 0.5) / (counts.sum() + 0.5 * vocabulary)
    trust = (total / (total + followers).clamp(min=1))[:, None]
    distribution = trust * counts / total.clamp(min=1)[:, None] + (1 - trust) * unigram
    return (distribution / unigram).log(), total


@dataclass(frozen=True)
class Layout:
    """Which dimensions of a residual stream start with which meaning."""

    size: int  # of the residual stream

    @property
    def half(self) -> int:
        """How many dimensions what a token says takes, and as many how it is predicted."""
        return self.size * 5 // 12

    @property
    def says(self) -> slice:
        """What a token says about the next one; unlike for every token."""
        return slice(0, self.half)

    @property
    def predicted(self) -> slice:
        """How a token is predicted."""
        return slice(self.half, 2 * self.half)

    @property
    def free(self) -> slice:
        """Zero in the embedding: room for what layers find out."""
        return slice(2 * self.half, self.size - 2)

    @property
    def prior(self) -> int:
        """How frequent a token is."""
        return self.size - 2

    @property
    def constant(self) -> int:
        """The same for every token."""
        return self.size - 1


@torch.no_grad()
def counted_embedding(ids: Tensor, vocabulary: int, size: int, seed: int) -> Tensor:  # (T,) -> (V, size)
    """An embedding made from token ids in the order they occur."""
    torch.manual_seed(seed)
    layout = Layout(size)
    ratio, total = bigram_log_ratio(ids, vocabulary)
    ratio = ratio - ratio.mean(1, keepdim=True)  # the same for every next token: softmax cannot see it
    weight = (total + 1).pow(0.25)[:, None]  # frequent tokens are fitted better, rare ones not ignored
    left, values, right = torch.svd_lowrank(ratio * weight, q=layout.half, niter=6)
    says = left * values.sqrt() / weight
    predicted = right * values.sqrt()
    table = torch.zeros(vocabulary, size)
    loud = predicted.norm(dim=1, keepdim=True)
    loud = (loud / loud.mean()).clamp(0.4, 1.3) * layout.half**0.5  # (V, 1)
    prior = (total + 0.5).log()
    table[:, layout.prior] = (prior - prior.mean()) / prior.std()
    # Rows of one length: after normalization the constant is the same for all, which the copying heads rely on.
    rest = 2 * layout.half - loud**2 - table[:, layout.prior, None] ** 2
    for place, part, length in (
        (layout.says, says, rest.clamp(min=1).sqrt()),
        (layout.predicted, predicted, loud),
    ):
        noisy = functional.normalize(part, dim=1) + 0.2 * functional.normalize(torch.randn_like(part), dim=1)
        table[:, place] = functional.normalize(noisy, dim=1) * length
    table[:, layout.constant] = CONSTANT
    return SCALE * table
