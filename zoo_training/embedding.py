"""Bigram statistics written into the embedding before training.

A model trained on few tokens spends most of them on learning bigram statistics. The matrix of log p(next |
token) / p(next) is factored: one factor describes a token as the context of the next one, the other a token
as the one to predict. Some dimensions of the embedding start as the first factor, some as the second; the
layers learn within a few steps to map one to the other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SCALE = 0.08  # standard deviation: large beside the training steps of 0.02 of the layers that add to it
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
    """The initial use of each dimension of the residual stream."""

    size: int  # of the residual stream

    @property
    def half(self) -> int:
        """Dimensions of each of the two factors."""
        return self.size * 5 // 12

    @property
    def as_context(self) -> slice:
        """The token as context of the next one."""
        return slice(0, self.half)

    @property
    def as_target(self) -> slice:
        """The token as the one to predict."""
        return slice(self.half, 2 * self.half)

    @property
    def free(self) -> slice:
        """Zero in the embedding: for the outputs of layers."""
        return slice(2 * self.half, self.size - 2)

    @property
    def prior(self) -> int:
        """The log frequency of the token."""
        return self.size - 2

    @property
    def constant(self) -> int:
        """The same for every token."""
        return self.size - 1


@torch.no_grad()
def counted_embedding(ids: Tensor, vocabulary: int, size: int, seed: int) -> Tensor:  # (T,) -> (V, size)
    """The embedding for a text of token ids."""
    torch.manual_seed(seed)
    layout = Layout(size)
    ratio, total = bigram_log_ratio(ids, vocabulary)
    ratio = ratio - ratio.mean(1, keepdim=True)  # the same for every next token: softmax cannot see it
    weight = (total + 1).pow(0.25)[:, None]  # frequent tokens are fitted better, rare ones not ignored
    left, values, right = torch.svd_lowrank(ratio * weight, q=layout.half, niter=6)
    contexts = left * values.sqrt() / weight
    targets = right * values.sqrt()
    table = torch.zeros(vocabulary, size)
    norms = targets.norm(dim=1, keepdim=True)
    norms = (norms / norms.mean()).clamp(0.4, 1.3) * layout.half**0.5  # (V, 1)
    prior = (total + 0.5).log()
    table[:, layout.prior] = (prior - prior.mean()) / prior.std()
    # Rows of one length: after normalization the constant is the same for all, which the copying heads rely
    # on.
    rest = 2 * layout.half - norms**2 - table[:, layout.prior, None] ** 2
    for columns, factor, length in (
        (layout.as_context, contexts, rest.clamp(min=1).sqrt()),
        (layout.as_target, targets, norms),
    ):
        noisy = functional.normalize(factor, dim=1) + 0.2 * functional.normalize(
            torch.randn_like(factor), dim=1
        )
        table[:, columns] = functional.normalize(noisy, dim=1) * length
    table[:, layout.constant] = CONSTANT
    return SCALE * table
