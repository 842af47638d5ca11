"""HedgeSpec (Liu et al. 2026): of several draft models, the one that would have drafted the last tokens best.

New here: DraftComparison, which reads q of all draft models at the generated tokens, NormalHedge and Hedge,
which weigh the models by it. Reuses: ArmsDrafter, DraftModel, Fixed, Rejection. Exact at any temperature: the
model of a step is drawn with noise of its own, with weights that follow from earlier steps, so that the q
that it records is the distribution of its tokens.

A bandit (`ucb-spec`) learns of one drafter per step; here every step tells how likely a draft token of each
model would have been accepted at each generated token, 1 - TV(p, q). From these follow the tokens that a
draft of `depth` tokens would have generated from each position, known `depth` positions later, and
NormalHedge's weights, which need no learning rate. A request begins with equal weights. Where the text of a
request changes, so that another model suits it better, that is seen after about as many tokens as before.

Where acceptance depends on the token, products of 1 - TV along the generated text are not quite the expected
length, as the text is not the draft's; `estimate` "token" takes min(1, q(x) / p(x)) of the generated tokens
x, which is unbiased and varies more. `loss` "rate" compares acceptance per token without delay.

The paper's experts are heads of EAGLE-3, which draft trees. Here they are draft models, which draft chains:
heads cannot be given, and neither is the paper's other statistic, the target's probability of the tokens that
a tree has behind its root. `taps` drafts with several heads, all of them in each step.

Use it with draft models for different domains or languages. All of them read all generated tokens, each in a
forward of its own per step, except those it has read while it drafted: with many or large models that costs
more than the choice gains. With one draft model it is speculative sampling.

Every drafter is compared on every generated token, also those that did not draft it, so the comparison needs
no trial drafts. A bandit (`bandit.py`) only learns about the drafter that it chose.

Letters: N models, T positions, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Literal

import torch
from torch import Tensor

from outpace.controllers.bandit import draw_arms
from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step, Target, Want, recipe
from outpace.drafters.compose.arms import ArmsDrafter
from outpace.drafters.compose.rows import context_of_rows
from outpace.drafters.model.draft_model import DraftModel
from outpace.recipes.control.hedge_spec.normal_hedge import NormalHedge
from outpace.sampling.adjust import Adjuster
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.sampling.warp import warp
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2510.20064", family="control and routing")
def hedge_spec(
    target: Target,
    *,
    drafts: tuple[Target, ...],
    depth: int = 5,
    loss: Literal["length", "rate"] = "length",
    estimate: Literal["distribution", "token"] = "distribution",
) -> Parts:
    """A chain of one of several draft models, chosen by what all of them would have drafted.

    Args:
        drafts: models that draft, one or more; they have the same vocabulary as the target
        depth: tokens drafted per step
        loss: what is compared: the expected length of a draft, or acceptance per token
        estimate: of acceptance at a generated token: by both distributions, or by their ratio at the token
    """
    if not drafts:
        raise ValueError("hedge-spec needs drafts: give one draft model or more")
    models = [DraftModel(draft, keeps_logits=True) for draft in drafts]
    arms = [Parts(target, model, Rejection(), Fixed(depth)) for model in models]
    compare = DraftComparison(models, by_token=estimate == "token")
    choice = Hedge(len(models), depth, compare, horizon=1 if loss == "rate" else None)
    return Parts(target, ArmsDrafter(arms), Rejection(), choice)


# step -> row -> for each generated token the probability, by drafter, that its draft is accepted there
Compare = Callable[[Step], Mapping[int, Sequence[Sequence[float]]]]


class DelayedLosses:
    """The losses of drafts that would have begun at each position, known once as many positions follow as
    drafts are long.

    The loss is 1 - E / (K + 1), where E = 1 + a + a b + ... is the number of tokens that a draft of K tokens
    is expected to generate if its tokens are accepted with the probabilities a, b, ...
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        # for each position: the weights of the drafters in the step that drafted it, and by drafter the
        # probability that its token is accepted there
        self._waiting: deque[tuple[Sequence[float], Sequence[float]]] = deque()

    def add(
        self, weights: Sequence[float], accepted: Sequence[float]
    ) -> Iterator[tuple[Sequence[float], list[float]]]:
        """Add the next position, whose step had these weights and where each drafter's token is accepted with
        these probabilities. Yields the weights and each drafter's loss for the positions whose losses are now
        known, in order."""
        self._waiting.append((weights, accepted))
        while len(self._waiting) >= self._depth:
            following = [each for _, each in islice(self._waiting, self._depth)]
            losses = [
                1 - expected_tokens(rates) / (self._depth + 1) for rates in zip(*following, strict=True)
            ]
            yield self._waiting.popleft()[0], losses


def expected_tokens(rates: Sequence[float]) -> float:
    """Tokens that a draft is expected to generate, with the target's own one, if its tokens are accepted with
    these probabilities."""
    return 1 + sum(prod(rates[:count]) for count in range(1, len(rates) + 1))


@dataclass(slots=True)
class Request:
    """What is known of one request."""

    experts: NormalHedge
    losses: DelayedLosses
    weights: Sequence[float]  # probabilities of the drafters in the next step


class Hedge:
    """Implementation of core.contracts.Controller: in each row and step one of several drafters is drawn,
    with probabilities that NormalHedge (Liu et al. 2026) learns. All draft chains of one length.

    A request begins with equal probabilities. The loss of a drafter at a position is known when the text has
    grown by as many tokens as a draft has; the probabilities of the step that drafted the position are then
    updated with it.
    """

    want = Want()
    plans_across_rows = False

    def __init__(
        self, num_drafters: int, depth: int, compare: Compare, *, horizon: int | None = None
    ) -> None:
        """`compare` is called once per step, and may run draft models. `horizon`: length of the drafts whose
        losses are compared; None: `depth`. ValueError for a depth or horizon below 1."""
        horizon = depth if horizon is None else horizon
        if min(depth, horizon) < 1:
            raise ValueError(f"depth is {depth}; use 1 or more")
        self._num_drafters, self._depth, self._horizon, self._compare = num_drafters, depth, horizon, compare
        self._requests: dict[int, Request] = {}  # by slot

    def plan(self, ctx: Context) -> Plan:
        rows = [row for row, depth in enumerate(ctx.max_draft_depth) if depth]
        drafter = [0] * len(ctx.slots)
        weights = [self._request(ctx.slots[row]).weights for row in rows]
        for row, arm in zip(rows, draw_arms(ctx, rows, weights), strict=True):
            drafter[row] = arm
        return Plan((self._depth,) * len(ctx.slots), drafter=tuple(drafter))

    def weights(self, slot: int) -> Sequence[float]:
        """The weights of the drafters for the request in this slot."""
        return self._request(slot).weights

    def _request(self, slot: int) -> Request:
        if slot not in self._requests:
            experts = NormalHedge(self._num_drafters)
            self._requests[slot] = Request(experts, DelayedLosses(self._horizon), experts.weights())
        return self._requests[slot]

    def observe(self, step: Step) -> None:
        for row, positions in self._compare(step).items():
            request = self._request(step.ctx.slots[row])
            for accepted in positions:
                for weights, losses in request.losses.add(request.weights, accepted):
                    request.experts.update(weights, losses)
            request.weights = request.experts.weights()

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._requests.pop(slot, None)


class DraftComparison:
    """After each step, for every generated token and model: the probability that a draft token of the model
    would have been accepted there.

    That is 1 - TV(p, q), or, for tokens x that the target generates, min(1, q(x) / p(x)) with `by_token`,
    whose mean over x is the same. Both distributions are those after all sampling parameters.

    Each model reads the generated tokens for this in one forward more per step, as far as it has not read
    them while it drafted; its next draft then needs not read them.
    """

    def __init__(self, drafters: Sequence[DraftModel], *, by_token: bool = False) -> None:
        """`drafters`: with `keeps_logits`, for one target."""
        self._drafters, self._by_token = tuple(drafters), by_token

    def __call__(self, step: Step) -> dict[int, list[list[float]]]:
        """Row -> (T, N), T the number of tokens that it generated; without the rows that generated none or
        whose requests have ended."""
        rows = [row for row, generated in enumerate(step.generated) if generated and row not in step.finished]
        if not rows or step.scores.logits is None:
            return {}
        ctx, texts = context_of_rows(step.ctx, rows), [step.generated[row] for row in rows]
        paths = [step.draft.tree.forest.path(step.kept[row]) for row in rows]
        target_probs = LazyTargetProbs(step.scores, step.draft.tree, step.ctx)
        p = target_probs.probs([node for path in paths for node in path])
        tokens = torch.tensor([token for text in texts for token in text], device=p.device)[:, None]
        accepted: list[Tensor] = []
        for drafter in self._drafters:
            q = self._draft_probs(drafter, ctx, texts, p)
            if self._by_token:
                tiny = torch.finfo(p.dtype).tiny
                ratios = q.gather(1, tokens) / p.gather(1, tokens).clamp(min=tiny)
                accepted.append(ratios[:, 0].clamp(max=1.0))
            else:
                accepted.append(torch.minimum(p, q).sum(-1).clamp(max=1.0))
        by_position = iter(torch.stack(accepted, 1).tolist())
        return {row: [next(by_position) for _ in text] for row, text in zip(rows, texts, strict=True)}

    def _draft_probs(
        self, drafter: DraftModel, ctx: Context, texts: Sequence[Sequence[int]], p: Tensor
    ) -> Tensor:  # (T, V)
        """`draft_probs` of a model; 0 in rows whose texts are longer than it reads."""
        lengths = zip(ctx.committed, texts, strict=True)
        rows = [
            row
            for row, (committed, text) in enumerate(lengths)
            if drafter.longest_draft(committed + len(text) - 1)
        ]
        if len(rows) == len(texts):
            return draft_probs(ctx, texts, drafter.read(ctx, [text[:-1] for text in texts])).to(p)
        found = [p.new_zeros(len(text), p.shape[1]) for text in texts]
        if rows:
            own, after = context_of_rows(ctx, rows), [texts[row] for row in rows]
            q = draft_probs(own, after, drafter.read(own, [text[:-1] for text in after])).to(p)
            for row, part in zip(rows, q.split([len(text) for text in after]), strict=True):
                found[row] = part
        return torch.cat(found)


def draft_probs(ctx: Context, texts: Sequence[Sequence[int]], logits: Sequence[Tensor]) -> Tensor:
    """q before each token of `texts`, which follow the roots of `ctx`, from each row's logits, (T, V). 0
    where a model excludes all tokens that the sampling parameters allow."""
    rows = [row for row, text in enumerate(texts) for _ in text]
    paths = [text[:length] for text in texts for length in range(len(text))]
    adjusted = Adjuster(ctx)(torch.cat(list(logits)), rows, paths)
    return warp(adjusted, [ctx.sampling[row] for row in rows]).nan_to_num(0.0)
