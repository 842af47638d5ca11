"""Verification with the logits of two readings of a draft (Wang et al. 2025), and its distribution.

Letters: N nodes of the draft, M nodes, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from outpace.core.claim import Claim
from outpace.core.contracts import Guarantee, ReferenceRequest, Scores, Target, TargetProbs, Verdict, Want
from outpace.core.device_copies import indices
from outpace.core.noise import Noise
from outpace.core.tree import TokenTree
from outpace.drafters.model.plain_drafts import Path, PlainChains
from outpace.recipes.relaxed.reflective_verification.copied_draft import copied_nodes, longest_copied
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.sampling.warp import warp
from outpace.verifiers.rejection import ACCEPT, RESIDUAL, residual
from outpace.verifiers.rows import keys, smallest_mass


def fused(own: Tensor, copied: Tensor, weight: float) -> Tensor:  # (M, V) each -> (M, V)
    """The weighted mean of the logits of the first reading and of the copy; a token that the first excludes
    stays so."""
    return torch.where(own == -math.inf, own, (1 - weight) * own + weight * copied)


class Fused:
    """Implementation of core.contracts.Verifier: a draft token x is accepted with probability z(x), where z
    has the fused logits and the request's sampling parameters, and nothing after the first rejection. In
    place of a rejected token another one is drawn from the target's own distribution, as rejection does for a
    token that was chosen; after a whole accepted draft any. The scores have nodes for the copies behind those
    of the tree."""

    want = Want()
    accepts: tuple[type[Claim], ...] = ()  # drafts are chains of chosen tokens
    guarantee = Guarantee.LOSSY

    def __init__(self, weight: float, num_reflection: int) -> None:
        self._weight, self._num_reflection = weight, num_reflection

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        assert scores.logits is not None and isinstance(target_probs, LazyTargetProbs)
        forest, tokens, logits = tree.forest, tree.token_list(), scores.logits
        copied = logits[indices(copied_nodes(forest, self._num_reflection), logits.device)]
        both = target_probs.mixed_with(copied, partial(fused, weight=self._weight))
        leaf, rejected = list(range(forest.num_rows)), dict[int, int]()  # row -> rejected node
        level = [root for root in leaf if forest.children[root]]
        while level:
            below = [forest.children[node][0] for node in level]
            probs = both.probs(level)
            drafted = indices([tokens[child] for child in below], probs.device)
            accepted = noise.flip(
                probs.gather(1, drafted[:, None])[:, 0].tolist(), keys(below, forest, ACCEPT)
            )
            for child, kept in zip(below, accepted, strict=True):
                if kept:
                    leaf[forest.rows[child]] = child
                else:
                    rejected[forest.rows[child]] = child
            level = [child for child, kept in zip(below, accepted, strict=True) if kept]
            level = [child for child in level if forest.children[child]]
        whole = [row for row in range(forest.num_rows) if row not in rejected]
        bonus = dict(zip(whole, self.after(leaf, whole, target_probs, both, noise), strict=True))
        if rejected:
            rows = list(rejected)
            nodes = [leaf[row] for row in rows]
            p = target_probs.probs(nodes)
            drafted = indices([tokens[rejected[row]] for row in rows], p.device)
            left = residual(p, torch.zeros_like(p).scatter_(1, drafted[:, None], 1.0), p)
            chosen = noise.choose(left, keys(nodes, forest, RESIDUAL))
            bonus |= zip(rows, chosen.tolist(), strict=True)
        return Verdict(leaf, [bonus[row] for row in range(forest.num_rows)])

    def after(
        self,
        leaf: Sequence[int],
        rows: Sequence[int],
        target_probs: TargetProbs,
        both: TargetProbs,
        noise: Noise,
    ) -> list[int]:
        """The tokens after whole accepted drafts, which are the target's own: the copy has no say."""
        return target_probs.choose([leaf[row] for row in rows], noise) if rows else []


class FusedSteps:
    """Implementation of core.contracts.StepReference: what a step of reflective verification adds to a text,
    with a forward over the whole text, the draft, the reflection and the copy for each logit."""

    def __init__(self, target: Target, draft: Target, reflection: Path, depth: int, weight: float) -> None:
        self._chain, self._max_length = PlainChains(draft, depth), target.max_length
        self._reflection, self._weight = reflection, weight

    @property
    def description(self) -> str:
        """Completes the sentence "the output is that of ...", for users."""
        return (
            f"reflective verification, which gives a draft's second reading the weight {self._weight:g} "
            "when it decides about a token"
        )

    def step(self, text: Path, limit: int, request: ReferenceRequest) -> Iterator[tuple[float, Path]]:
        longest = longest_copied(self._max_length, len(text), len(self._reflection))
        paths = self._chain(text, min(limit - 1, longest), request)
        draft = paths[-1] if paths else ()
        ends = [at for at, token in enumerate(draft, 1) if token in request.sampling.stop]
        draft, before = draft[: ends[0]] if ends else draft, 1.0
        for at, token in enumerate(draft):
            now = (*text, *draft[:at])
            own = request.adjusted(now, request.logits(now)).tolist()
            read = (*text, *draft, *self._reflection, *draft[:at])
            copied = request.adjusted(now, request.logits(read)).tolist()
            mean = [
                one if one == -math.inf else one + self._weight * (other - one)
                for one, other in zip(own, copied, strict=True)
            ]
            mixed = warp(torch.tensor([mean], dtype=torch.float64), [request.sampling])[0]
            chance, probs = float(mixed[token]), request.probs(now)
            others = [0.0 if each == token else prob for each, prob in enumerate(probs.tolist())]
            if sum(others) <= smallest_mass(probs.dtype):
                others = probs.tolist()
            for each, prob in enumerate(others):
                if prob and chance < 1:
                    yield before * (1 - chance) * prob / sum(others), (*draft[:at], each)
            before *= chance
            if not before:
                return
        for each, prob in enumerate(request.probs((*text, *draft)).tolist()):
            if prob:
                yield before * prob, (*draft, each)
