"""Ends a draft where one of its tokens will probably be rejected. A head on the draft model's hidden states
predicts that; it learns from what the target accepts.

Letters: M positions, D hidden size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from outpace.core.contracts import Step
from outpace.drafters.learning.online_adam import OnlineAdam, Weights

REMEMBERED = 1024  # last verified draft tokens that the head learns from
INTERVAL, UPDATES = 32, 4  # verified draft tokens between rounds of updates, and updates in a round
STEP = 0.25  # largest change of a logit by one update, about


class Stop:
    """Decides behind which tokens the draft of a row ends: those with which the predicted probability that
    any drafted token is rejected exceeds a threshold."""

    def __init__(self, threshold: float) -> None:
        self._threshold, self.head = threshold, AcceptanceHead()
        # slot -> tokens of its last draft, and hidden states after the first of them, (D,) each
        self._drafted: dict[int, tuple[list[int], list[Tensor]]] = {}

    def accepted(self, hidden: Tensor) -> list[float]:  # (M, D) -> (M,)
        """The predicted probability that the token after which the draft model has this state is accepted."""
        return self.head.accepted(hidden)

    def ends(self, survival: float) -> bool:
        """Whether a draft ends whose tokens are all accepted with this probability."""
        return 1 - survival > self._threshold

    def remember(self, slot: int, tokens: list[int], hidden: list[Tensor]) -> None:
        """The draft of a row, which `observe` learns from."""
        self._drafted[slot] = tokens, hidden

    def observe(self, step: Step) -> None:
        """Learn which of the remembered tokens were accepted. Those after the first rejection were not
        tested."""
        tree, hidden, accepted = step.draft.tree, list[Tensor](), list[bool]()
        forest, tokens = tree.forest, tree.token_list()
        for row, slot in enumerate(step.ctx.slots):
            drafted, states = self._drafted.pop(slot, ([], []))
            if [tokens[node] for node in forest.nodes[row][1:]] != drafted:
                continue  # another drafter's, such as a predicted output
            depth = forest.depths[step.verdict.leaf[row]]
            tested = states[: depth + 1]
            hidden += tested
            accepted += [index < depth for index in range(len(tested))]
        self._drafted.clear()
        if hidden:
            self.head.learn(torch.stack(hidden), accepted)


class AcceptanceHead:
    """A linear layer and a sigmoid on hidden states, which are scaled to mean square 1.

    It predicts the probability that a draft token is accepted given that those before it are. Learns by
    logistic regression on the last `REMEMBERED` verified tokens; until its first round of updates it predicts
    nothing. Memory: D numbers of float32 per remembered token."""

    def __init__(self) -> None:
        self._adam: OnlineAdam | None = None  # from the first hidden state on, whose size it needs
        self._remembered: deque[tuple[Tensor, float]] = deque(maxlen=REMEMBERED)
        self._num_new = 0
        self.num_updates = 0

    def accepted(self, hidden: Tensor) -> list[float]:  # (M, D) -> (M,)
        """The probability that each of these tokens is accepted; 1 before the first updates."""
        if self._adam is None or not self.num_updates:
            return [1.0] * len(hidden)
        return self._logits(_features(hidden), self._adam.weights).sigmoid().tolist()

    def learn(self, hidden: Tensor, accepted: Sequence[bool]) -> None:  # (M, D), (M,)
        """Remember verified draft tokens; every `INTERVAL` of them, update the weights."""
        with torch.inference_mode(False), torch.no_grad():
            features = _features(hidden.clone())
            if self._adam is None:
                size = hidden.shape[-1]
                # the constant counts as much as all features together: Adam moves each weight equally far
                weights = (features.new_zeros(size), features.new_zeros(()))
                self._adam = OnlineAdam(weights, STEP / size)
            for row, label in zip(features, accepted, strict=True):
                if row.isfinite().all():
                    self._remembered.append((row, float(label)))
                    self._num_new += 1
        if self._num_new >= INTERVAL:
            self._num_new = 0
            for _ in range(UPDATES):
                self.num_updates += self._adam.update(self._losses)

    def _losses(self, weights: Weights) -> Iterator[Tensor]:
        features = torch.stack([each for each, _ in self._remembered])
        labels = torch.tensor([each for _, each in self._remembered]).to(features)
        yield binary_cross_entropy_with_logits(self._logits(features, weights), labels)

    def _logits(self, features: Tensor, weights: Weights) -> Tensor:  # (M, D) -> (M,)
        slopes, constant = weights
        return features @ slopes + features.shape[-1] * constant


def _features(hidden: Tensor) -> Tensor:  # (M, D) -> (M, D)
    hidden = hidden.to(torch.promote_types(torch.float32, hidden.dtype))
    return hidden * (hidden.square().mean(-1, keepdim=True) + 1e-12).rsqrt()
