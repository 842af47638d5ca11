"""Initialization of the tied embedding with bigram statistics.

A model trained on few tokens spends most of them on learning bigram statistics. The matrix of log p(next |
token) / p(next) is factored by a truncated SVD: one factor represents a token as the context of the next one,
the other as the token to predict. Each factor fills a part of the embedding dimensions; the layers learn
within a few steps to map the first to the second.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SCALE = 0.08  # standard deviation of the embedding: large compared with the learning rate 0.02 of the layers
CONSTANT = 4.0  # value of the constant dimension, in units of SCALE


def bigram_log_ratio(ids: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:  # (T,) -> (V, V), (V,)
    """log p(next | token) / p(next) with Witten-Bell smoothing, and the number of occurrences of each token
    (the last position excepted)."""
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
    """Assignment of the dimensions of the residual stream at initialization."""

    size: int  # hidden size

    @property
    def half(self) -> int:
        """Number of dimensions of each of the two factors."""
        return self.size * 5 // 12

    @property
    def as_context(self) -> slice:
        """Dimensions that represent the token as the context of the next one."""
        return slice(0, self.half)

    @property
    def as_target(self) -> slice:
        """Dimensions that represent the token as the one to predict."""
        return slice(self.half, 2 * self.half)

    @property
    def free(self) -> slice:
        """Dimensions that are zero in the embedding, reserved for the outputs of layers."""
        return slice(2 * self.half, self.size - 2)

    @property
    def prior(self) -> int:
        """Dimension of the token's standardized log frequency."""
        return self.size - 2

    @property
    def constant(self) -> int:
        """Dimension with the same value for every token."""
        return self.size - 1


@torch.no_grad()
def counted_embedding(ids: Tensor, vocabulary: int, size: int, seed: int) -> Tensor:  # (T,) -> (V, size)
    """Initial embedding matrix from the bigram counts of a text; ids: (T,) token ids; size: hidden size."""
    torch.manual_seed(seed)
    layout = Layout(size)
    ratio, total = bigram_log_ratio(ids, vocabulary)
    ratio = ratio - ratio.mean(1, keepdim=True)  # a shift of all logits does not change the softmax
    weight = (total + 1).pow(0.25)[:, None]  # fit frequent tokens more closely than rare ones
    left, values, right = torch.svd_lowrank(ratio * weight, q=layout.half, niter=6)
    contexts = left * values.sqrt() / weight
    targets = right * values.sqrt()
    table = torch.zeros(vocabulary, size)
    norms = targets.norm(dim=1, keepdim=True)
    norms = (norms / norms.mean()).clamp(0.4, 1.3) * layout.half**0.5  # (V, 1)
    prior = (total + 0.5).log()
    table[:, layout.prior] = (prior - prior.mean()) / prior.std()
    # Rows of equal norm: the constant dimension then stays equal for all tokens after RMSNorm, as the
    # induction heads require.
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
